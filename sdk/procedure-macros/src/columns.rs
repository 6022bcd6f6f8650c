//! `#[columns(Table)]`: a struct of some columns of a table.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Fields, ItemStruct, Path, Result, parse2, spanned::Spanned};

use crate::table::{position_const, primary_methods};

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let base: Path = parse2(options)?;
    let item: ItemStruct = parse2(item)?;
    let Fields::Named(fields) = &item.fields else {
        return Err(Error::new(item.ident.span(), "columns are named fields"));
    };
    if fields.named.is_empty() || !item.generics.params.is_empty() {
        let text = "at least one column, and no generic parameters";
        return Err(Error::new(item.ident.span(), text));
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
    let codec = codec(&base, &item, &idents, &types, &positions);
    let methods = methods(&item);
    Ok(quote! { #item #codec #methods })
}

fn codec(
    base: &Path,
    item: &ItemStruct,
    idents: &[&syn::Ident],
    types: &[&syn::Type],
    positions: &[TokenStream],
) -> TokenStream {
    let (view, count) = (&item.ident, idents.len());
    let places: Vec<_> = (0..count).collect();
    let plan = native_plan(base, positions);
    quote! {
        const _: () = {
            use ::reprise_procedure::{
                column::{Column as __Column, Columns as __Columns, Layout as __Layout, is_same_type},
                table::{ColumnsOf as __ColumnsOf, InModule as __InModule, IndexOf as __IndexOf, Table as __Table},
            };
            const LAYOUT: __Layout<#count> = __Layout::new([#((<#types as __Column>::TYPE, <#types as __Column>::NULLABLE)),*]);
            const ROOM: usize = {
                let bytes = 8 + LAYOUT.fixed_bytes #(+ <#types as __Column>::INLINE_BYTES)*;
                if bytes > 1024 { 1024 } else { bytes }
            };
            #(const _: () = {
                let column = &<#base as __Table>::INFO.columns[#positions as usize];
                let field = (<#types as __Column>::TYPE, <#types as __Column>::NULLABLE);
                assert!(is_same_type(field, (column.ty, column.nullable)), "a field has the type of its column in the table");
            };)*
            #plan
            impl __Table for #view {
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
                    &[#((<#types as __Column>::TYPE, <#types as __Column>::NULLABLE)),*];
                #[inline(always)]
                fn row_bytes(&self) -> usize {
                    LAYOUT.fixed_bytes #(+ __Column::data_bytes(&self.#idents))*
                }
                #[inline(always)]
                fn write_row(&self, out: &mut [u8]) {
                    let mut end = 0;
                    #(__Column::write(&self.#idents, out, LAYOUT.places[#places], &mut end);)*
                    let _ = end;
                }
                #[inline(always)]
                fn read_row(row: &[u8]) -> ::core::option::Option<Self> {
                    ::core::option::Option::Some(Self {
                        #(#idents: <#types as __Column>::read(row, LAYOUT.places[#places])?,)*
                    })
                }
            }
            impl __InModule for #view {
                const TABLE: u16 = <#base as __InModule>::TABLE;
            }
            impl<const I: u16> __IndexOf<I> for #view
            where
                #base: __IndexOf<I>,
            {
                type Columns = <#base as __IndexOf<I>>::Columns;
            }
            impl __ColumnsOf<#base> for #view {}
        };
    }
}

/// How the columns are moved where the host is this program; in wasm it is the host that knows.
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

fn methods(item: &ItemStruct) -> TokenStream {
    let (view, reads) = (&item.ident, primary_methods());
    quote! {
        #[allow(dead_code)]
        impl #view {
            #reads
            /// Reads these columns of the row behind a handle of the table: of a row of which others were read.
            #[inline]
            pub fn read(
                tx: &::reprise_procedure::txn::Txn<'_>,
                handle: ::reprise_procedure::abi::RowHandle,
            ) -> ::reprise_procedure::table::Row<Self> {
                ::reprise_procedure::table::read(tx, handle)
            }
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
