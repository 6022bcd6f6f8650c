//! Derives for arguments and results: structs by field, enums by variant number.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Ident, Result, Type, parse2};

use crate::names;

fn no_generics(input: &DeriveInput) -> Result<()> {
    if input.generics.params.is_empty() {
        return Ok(());
    }
    Err(Error::new_spanned(
        &input.generics,
        "an argument or result type has no generic parameters",
    ))
}

/// A struct that is taken and returned.
pub fn expand_struct(item: TokenStream) -> Result<TokenStream> {
    let (input, fields) = fields_of(item)?;
    no_generics(&input)?;
    let (encode, ident) = (encode_struct(&input, &fields), &input.ident);
    let (idents, types) = (fields.iter().map(|field| &field.0), fields.iter().map(|field| &field.1));
    Ok(quote! {
        #encode
        impl<'a> ::reprise_procedure::value::Decode<'a> for #ident {
            #[inline]
            fn decode(
                reader: &mut ::reprise_procedure::abi::value::ValueReader<'a>,
            ) -> ::core::result::Result<Self, ::reprise_procedure::abi::value::ValueError> {
                ::core::result::Result::Ok(Self {
                    #(#idents: <#types as ::reprise_procedure::value::Decode<'a>>::decode(reader)?,)*
                })
            }
        }
    })
}

/// A struct that is only returned: its fields need no way back, and may be borrowed.
pub fn expand_result(item: TokenStream) -> Result<TokenStream> {
    let (input, fields) = fields_of(item)?;
    if input.generics.type_params().next().is_some() || input.generics.const_params().next().is_some() {
        return no_generics(&input).map(|()| TokenStream::new());
    }
    Ok(encode_struct(&input, &fields))
}

/// A field's name as written, its type, and its name in the description.
type StructItem = (Ident, Type, String);

fn fields_of(item: TokenStream) -> Result<(DeriveInput, Vec<StructItem>)> {
    let input: DeriveInput = parse2(item)?;
    let ident = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            ident.span(),
            "only a struct has fields; for enums there is ProcedureEnum",
        ));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            ident.span(),
            "an argument or result struct needs named fields",
        ));
    };
    let items = fields.named.iter().map(|field| {
        let name = field
            .ident
            .clone()
            .ok_or_else(|| Error::new(ident.span(), "a field has a name"))?;
        let text = names::name_of(&name)?;
        Ok((name, field.ty.clone(), text))
    });
    let items = items.collect::<Result<Vec<_>>>()?;
    Ok((input, items))
}

fn encode_struct(input: &DeriveInput, fields: &[StructItem]) -> TokenStream {
    let ident = &input.ident;
    let idents = fields.iter().map(|field| &field.0);
    let (types, texts) = (fields.iter().map(|field| &field.1), fields.iter().map(|field| &field.2));
    let usual = fields.iter().map(|field| &field.1);
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    // The description knows short ASCII names alone; a type of another name is described without.
    let text = names::text_of(ident);
    let is_described = text.is_ascii() && text.len() <= 63 && !text.starts_with('_');
    let name = match is_described {
        true => quote!(::core::option::Option::Some(::std::string::String::from(#text))),
        false => quote!(::core::option::Option::None),
    };
    quote! {
        impl #generics ::reprise_procedure::value::ValueType for #ident #arguments #bounds {
            fn value_type() -> ::reprise_procedure::abi::Type {
                ::reprise_procedure::abi::Type::Struct(::reprise_procedure::abi::StructType {
                    name: #name,
                    fields: ::std::vec![#(
                        ::reprise_procedure::abi::StructField {
                            name: ::std::string::String::from(#texts),
                            ty: <#types as ::reprise_procedure::value::ValueType>::value_type(),
                        }
                    ),*],
                })
            }
        }
        impl #generics ::reprise_procedure::value::Encode for #ident #arguments #bounds {
            const USUAL_BYTES: usize = 0 #(+ <#usual as ::reprise_procedure::value::Encode>::USUAL_BYTES)*;
            #[inline(always)]
            fn encode(&self, out: &mut ::reprise_procedure::result_writer::ResultWriter<'_>) {
                #(::reprise_procedure::value::Encode::encode(&self.#idents, out);)*
            }
        }
    }
}

/// An enum's variants, and their names in the description.
fn variants_of<'i>(input: &'i DeriveInput, derive: &str) -> Result<(Vec<&'i Ident>, Vec<String>)> {
    no_generics(input)?;
    let ident = &input.ident;
    let Data::Enum(data) = &input.data else {
        return Err(Error::new(ident.span(), format!("{derive} is for enums")));
    };
    let (mut variants, mut texts) = (Vec::new(), Vec::new());
    for variant in &data.variants {
        if !matches!(variant.fields, Fields::Unit) {
            return Err(Error::new(variant.ident.span(), "a variant carries no data"));
        }
        let name = names::snake_case(&names::text_of(&variant.ident));
        texts.push(names::checked(name, variant.ident.span())?);
        variants.push(&variant.ident);
    }
    if variants.is_empty() {
        return Err(Error::new(ident.span(), format!("{derive} needs at least one variant")));
    }
    Ok((variants, texts))
}

/// An enum that is a column: the number of its variant, in one byte.
pub fn expand_column_enum(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let ident = &input.ident;
    let (variants, texts) = variants_of(&input, "ColumnEnum")?;
    if let Some(beyond) = variants.get(256) {
        return Err(Error::new(beyond.span(), "a column has at most 256 variants"));
    }
    let numbers: Vec<u8> = (0..variants.len()).map(|number| number as u8).collect();
    Ok(quote! {
        const _: () = {
            use ::reprise_procedure::{column, key, scratch::Scratch};
            impl #ident {
                #[inline(always)]
                fn __number(&self) -> u8 {
                    match self { #(Self::#variants => #numbers,)* }
                }
            }
            impl column::Column for #ident {
                const TYPE: ::reprise_procedure::abi::ScalarType = ::reprise_procedure::abi::ScalarType::U8;
                const VARIANTS: &'static [&'static str] = &[#(#texts),*];
                #[inline(always)]
                fn write(&self, row: &mut [u8], place: column::Place, _: &mut u32) {
                    column::put_variant(row, place, self.__number());
                }
                fn push_default(&self, out: &mut Scratch) -> bool {
                    out.push(&[self.__number()]);
                    true
                }
            }
            impl<'r> column::ReadColumn<'r> for #ident {
                #[inline(always)]
                fn read(row: &'r [u8], place: column::Place) -> ::core::option::Option<Self> {
                    match column::take_variant(row, place)? {
                        #(#numbers => ::core::option::Option::Some(Self::#variants),)*
                        _ => ::core::option::Option::None,
                    }
                }
            }
            impl key::KeyArg<#ident> for #ident {
                const BYTES: usize = 1;
                #[inline(always)]
                fn push_key(&self, out: &mut impl key::KeyOut) {
                    out.push(&[self.__number()]);
                }
            }
        };
    })
}

pub fn expand_enum(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let ident = &input.ident;
    let (variants, texts) = variants_of(&input, "ProcedureEnum")?;
    let numbers = 0..variants.len() as u32;
    let same_numbers = numbers.clone();
    Ok(quote! {
        impl ::reprise_procedure::value::ValueType for #ident {
            fn value_type() -> ::reprise_procedure::abi::Type {
                ::reprise_procedure::abi::Type::Enum(::std::vec![#(::std::string::String::from(#texts)),*])
            }
        }
        impl ::reprise_procedure::value::Encode for #ident {
            const USUAL_BYTES: usize = 1;
            #[inline]
            fn encode(&self, out: &mut ::reprise_procedure::result_writer::ResultWriter<'_>) {
                out.put_varint(match self { #(Self::#variants => #numbers,)* });
            }
        }
        impl<'a> ::reprise_procedure::value::Decode<'a> for #ident {
            fn decode(
                reader: &mut ::reprise_procedure::abi::value::ValueReader<'a>,
            ) -> ::core::result::Result<Self, ::reprise_procedure::abi::value::ValueError> {
                let offset = reader.offset();
                match reader.varint()? {
                    #(#same_numbers => ::core::result::Result::Ok(Self::#variants),)*
                    _ => ::core::result::Result::Err(::reprise_procedure::abi::value::ValueError { offset }),
                }
            }
        }
    })
}
