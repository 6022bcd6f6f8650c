//! `#[columns(Table)]`: a struct of some columns of a table. With a lifetime, its texts stay where the host put them.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Error, Fields, GenericParam, ItemStruct, Lifetime, Path, Result, parse_quote, parse2, spanned::Spanned};

use crate::table::{borrowed_methods, multi_read_method, position_const, primary_methods, row_writer};

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let base: Path = parse2(options)?;
    let item: ItemStruct = parse2(item)?;
    let Fields::Named(fields) = &item.fields else {
        return Err(Error::new(item.ident.span(), "columns are named fields"));
    };
    let mut params = item.generics.params.iter();
    let lifetime = match (params.next(), params.next()) {
        (None, _) => None,
        (Some(GenericParam::Lifetime(only)), None) if only.bounds.is_empty() => Some(&only.lifetime),
        _ => {
            let text = "no generic parameters but a lifetime, of which texts (`TextRef`) are";
            return Err(Error::new(item.ident.span(), text));
        }
    };
    if fields.named.is_empty() {
        return Err(Error::new(item.ident.span(), "at least one column"));
    }
    let (mut idents, mut types, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    for field in &fields.named {
        let named = || Error::new(field.span(), "a column has a name");
        let ident = field.ident.as_ref().ok_or_else(named)?;
        let position = position_const(ident);
        positions.push(quote!(#base::#position));
        idents.push(ident);
        types.push(&field.ty);
    }
    let shape = ColumnsStruct {
        base,
        item: &item,
        lifetime,
        idents,
        types,
        positions,
    };
    let (codec, methods) = (shape.codec(), shape.methods());
    Ok(quote! { #item #codec #methods })
}

/// Parts of the struct.
struct ColumnsStruct<'a> {
    base: Path,
    item: &'a ItemStruct,
    lifetime: Option<&'a Lifetime>,
    idents: Vec<&'a syn::Ident>,
    types: Vec<&'a syn::Type>,
    positions: Vec<TokenStream>,
}

/// The tokens with another lifetime in the place of one: constants know no lifetime but `'static`.
fn with_static(tokens: TokenStream, lifetime: Option<&Lifetime>) -> TokenStream {
    let Some(lifetime) = lifetime else {
        return tokens;
    };
    let mut is_after_quote = false;
    let replaced = tokens.into_iter().map(|token| {
        let is_named = is_after_quote;
        is_after_quote = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '\'');
        match token {
            TokenTree::Ident(ident) if is_named && ident == lifetime.ident => {
                TokenTree::Ident(syn::Ident::new("static", ident.span()))
            }
            TokenTree::Group(group) => {
                let inner = with_static(group.stream(), Some(lifetime));
                TokenTree::Group(Group::new(group.delimiter(), inner))
            }
            other => other,
        }
    });
    replaced.collect()
}

impl ColumnsStruct<'_> {
    fn codec(&self) -> TokenStream {
        let Self {
            base,
            item,
            lifetime,
            idents,
            types,
            positions,
        } = self;
        let (view, count) = (&item.ident, idents.len());
        let (generics, lifetime) = (&item.generics, *lifetime);
        let own = |ty: &&syn::Type| with_static(ty.to_token_stream(), lifetime);
        let constants: Vec<_> = types.iter().map(own).collect();
        let writer = row_writer(idents);
        let (plan, relations) = (native_plan(base, positions), self.relations());
        quote! {
            const _: () = {
                use ::reprise_procedure::{
                    column::{Column as __Column, Columns as __Columns, Layout as __Layout, ReadColumn as __ReadColumn, is_same_type},
                    table::{
                        ColumnsOf as __ColumnsOf, InModule as __InModule, IndexOf as __IndexOf, ReadRow as __ReadRow, Table as __Table,
                    },
                };
                const LAYOUT: __Layout<#count> =
                    __Layout::new([#((<#constants as __Column>::TYPE, <#constants as __Column>::NULLABLE)),*]);
                const ROOM: usize = {
                    let bytes = 8 + LAYOUT.fixed_bytes #(+ <#constants as __Column>::INLINE_BYTES)*;
                    if bytes > 1024 { 1024 } else { bytes }
                };
                #(const _: () = {
                    let column = &<#base as __Table>::INFO.columns[#positions as usize];
                    let field = (<#constants as __Column>::TYPE, <#constants as __Column>::NULLABLE);
                    assert!(is_same_type(field, (column.ty, column.nullable)), "a field has the type of its column in the table");
                };)*
                #plan
                impl #generics __Table for #view #generics {
                    type Buffer = [u8; ROOM];
                    const EMPTY_BUFFER: [u8; ROOM] = [0; ROOM];
                    const INFO: &'static ::reprise_procedure::module::TableInfo = <#base as __Table>::INFO;
                    const COLUMNS: ::core::option::Option<__Columns> = ::core::option::Option::Some(__Columns {
                        table: <#base as __InModule>::TABLE,
                        set: __Columns::set_of(&[#(#positions),*]),
                        #[cfg(not(target_arch = "wasm32"))]
                        plan,
                    });
                    const SHAPE: &'static [(::reprise_procedure::abi::ScalarType, bool)] =
                        &[#((<#constants as __Column>::TYPE, <#constants as __Column>::NULLABLE)),*];
                    #writer
                }
                #relations
            };
        }
    }

    /// Generates the reading code, and its relation to the table, within the block of `codec`.
    fn relations(&self) -> TokenStream {
        let (base, idents, types, lifetime) = (&self.base, &self.idents, &self.types, self.lifetime);
        let (view, generics) = (&self.item.ident, &self.item.generics);
        let row: Lifetime = lifetime.cloned().unwrap_or_else(|| parse_quote!('__row));
        let lifetimes = lifetime.map(|lifetime| quote!(#lifetime,));
        let places = 0..idents.len();
        quote! {
            impl<#row> __ReadRow<#row> for #view #generics {
                #[inline(always)]
                fn read_row(row: &#row [u8]) -> ::core::option::Option<Self> {
                    ::core::option::Option::Some(Self {
                        #(#idents: <#types as __ReadColumn<#row>>::read(row, LAYOUT.places[#places])?,)*
                    })
                }
            }
            impl #generics __InModule for #view #generics {
                const TABLE: u16 = <#base as __InModule>::TABLE;
            }
            impl<#lifetimes const I: u16> __IndexOf<I> for #view #generics
            where
                #base: __IndexOf<I>,
            {
                type Columns = <#base as __IndexOf<I>>::Columns;
            }
            impl #generics __ColumnsOf<#base> for #view #generics {}
        }
    }

    fn methods(&self) -> TokenStream {
        let (view, generics, many) = (&self.item.ident, &self.item.generics, multi_read_method());
        let reads = match self.lifetime {
            Some(lifetime) => borrowed_methods(lifetime),
            None => owned_methods(),
        };
        quote! {
            #[allow(dead_code)]
            impl #generics #view #generics {
                #reads
                #many
                /// Writes these columns of the row behind a handle of the table.
                #[inline]
                pub fn write(
                    &self,
                    tx: &::reprise_procedure::txn::Txn<'_>,
                    handle: ::reprise_procedure::abi::RowHandle,
                ) -> ::core::result::Result<(), ::reprise_procedure::table::DuplicateKey> {
                    ::reprise_procedure::table::write(tx, handle, self)
                }
                /// Writes these columns of many rows in one host call.
                pub fn update_many(
                    tx: &::reprise_procedure::txn::Txn<'_>,
                    rows: &[::reprise_procedure::table::Row<Self>],
                ) -> ::core::result::Result<(), ::reprise_procedure::table::DuplicateKey> {
                    ::reprise_procedure::table::update_many(tx, rows)
                }
            }
        }
    }
}

/// Generates the plan that moves the columns if the host is this program. In wasm, the host has the plan.
fn native_plan(base: &Path, positions: &[TokenStream]) -> TokenStream {
    quote! {
        #[cfg(not(target_arch = "wasm32"))]
        fn plan() -> &'static ::reprise_procedure::abi::ColumnPlan {
            use ::reprise_procedure::abi::{ColumnPlan, ColumnSet};
            static PLAN: ::std::sync::OnceLock<ColumnPlan> = ::std::sync::OnceLock::new();
            PLAN.get_or_init(|| {
                let set = ColumnSet(__Columns::set_of(&[#(#positions),*]));
                ColumnPlan::new(&<#base as __Table>::INFO.layout(), set)
            })
        }
    }
}

/// Reads of rows that own all that they hold.
fn owned_methods() -> TokenStream {
    let reads = primary_methods();
    quote! {
        #reads
        /// Reads these columns of the row behind a handle of the table: of a row of which others were read.
        #[inline]
        pub fn read(
            tx: &::reprise_procedure::txn::Txn<'_>,
            handle: ::reprise_procedure::abi::RowHandle,
        ) -> ::reprise_procedure::table::Row<Self> {
            ::reprise_procedure::table::read(tx, handle)
        }
    }
}
