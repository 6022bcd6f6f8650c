//! Derives for arguments and results: structs by field, enums by variant number.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Result, parse2};

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

pub fn expand_struct(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    no_generics(&input)?;
    let ident = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(ident.span(), "ProcedureStruct is for structs"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            ident.span(),
            "ProcedureStruct needs named fields",
        ));
    };
    let (mut idents, mut types, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for field in &fields.named {
        let name = field
            .ident
            .as_ref()
            .ok_or_else(|| Error::new(ident.span(), "a field has a name"))?;
        idents.push(name);
        types.push(&field.ty);
        texts.push(names::name_of(name)?);
    }
    Ok(quote! {
        impl ::reprise_procedure::value::ValueType for #ident {
            fn value_type() -> ::reprise_procedure::abi::Type {
                ::reprise_procedure::abi::Type::Struct(::std::vec![#(
                    ::reprise_procedure::abi::StructField {
                        name: ::std::string::String::from(#texts),
                        ty: <#types as ::reprise_procedure::value::ValueType>::value_type(),
                    }
                ),*])
            }
        }
        impl ::reprise_procedure::value::Encode for #ident {
            #[inline]
            fn encode(&self, out: &mut ::reprise_procedure::scratch::Scratch) {
                #(::reprise_procedure::value::Encode::encode(&self.#idents, out);)*
            }
        }
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

pub fn expand_enum(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    no_generics(&input)?;
    let ident = &input.ident;
    let Data::Enum(data) = &input.data else {
        return Err(Error::new(ident.span(), "ProcedureEnum is for enums"));
    };
    let (mut variants, mut texts) = (Vec::new(), Vec::new());
    for variant in &data.variants {
        if !matches!(variant.fields, Fields::Unit) {
            return Err(Error::new(
                variant.ident.span(),
                "a variant carries no data",
            ));
        }
        let name = names::snake_case(&names::text_of(&variant.ident));
        texts.push(names::checked(name, variant.ident.span())?);
        variants.push(&variant.ident);
    }
    if variants.is_empty() {
        return Err(Error::new(
            ident.span(),
            "ProcedureEnum needs at least one variant",
        ));
    }
    let numbers = 0..variants.len() as u32;
    let same_numbers = numbers.clone();
    Ok(quote! {
        impl ::reprise_procedure::value::ValueType for #ident {
            fn value_type() -> ::reprise_procedure::abi::Type {
                ::reprise_procedure::abi::Type::Enum(::std::vec![#(::std::string::String::from(#texts)),*])
            }
        }
        impl ::reprise_procedure::value::Encode for #ident {
            #[inline]
            fn encode(&self, out: &mut ::reprise_procedure::scratch::Scratch) {
                out.push_varint(match self { #(Self::#variants => #numbers,)* });
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
