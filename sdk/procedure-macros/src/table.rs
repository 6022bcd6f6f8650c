//! `#[table]`: the row codec with constant offsets, the declaration, and one thin method per operation.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Error, Expr, Field, Fields, Ident, ItemStruct, Lifetime, Lit, LitStr, Result, Type, parse2, spanned::Spanned,
};

use crate::{
    names,
    table_options::{IndexOption, PlacementOption, PointKind, TableOptions},
};

struct ColumnItem {
    ident: Ident,
    name: String,
    ty: Type,
    default: Option<Expr>,
    /// Name that the column had before.
    was: Option<String>,
}

struct TableItem {
    item: ItemStruct,
    options: TableOptions,
    columns: Vec<ColumnItem>,
    name: String,
}

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let table = parse(options, item)?;
    let item = &table.item;
    let parts = [row_codec(&table)?, index_types(&table)?, methods(&table)?];
    Ok(quote! { #item #(#parts)* })
}

fn parse(options: TokenStream, item: TokenStream) -> Result<TableItem> {
    let mut item: ItemStruct = parse2(item)?;
    let options: TableOptions = parse2(options)?;
    options.check(item.ident.span())?;
    if !item.generics.params.is_empty() {
        return Err(Error::new(
            item.generics.span(),
            "a table has no generic parameters; text columns are `String` or `SmallText<N>`",
        ));
    }
    let Fields::Named(fields) = &mut item.fields else {
        return Err(Error::new(item.ident.span(), "a table is a struct with named fields"));
    };
    let columns = fields.named.iter_mut().map(parse_column).collect::<Result<Vec<_>>>()?;
    if columns.is_empty() {
        return Err(Error::new(item.ident.span(), "a table has at least one column"));
    }
    let name = match &options.name {
        Some(name) => table_name(name, options.is_shared)?,
        None => names::checked(names::snake_case(&names::text_of(&item.ident)), item.ident.span())?,
    };
    Ok(TableItem {
        item,
        options,
        columns,
        name,
    })
}

/// A table's name: of its own, or `module.table` of a shared one.
fn table_name(name: &LitStr, is_shared: bool) -> Result<String> {
    let text = name.value();
    let Some((owner, table)) = text.split_once('.') else {
        return names::checked(text, name.span());
    };
    if !is_shared {
        let message = "a table of another module is declared `shared` on both sides";
        return Err(Error::new(name.span(), message));
    }
    names::checked(owner.to_owned(), name.span())?;
    names::checked(table.to_owned(), name.span())?;
    Ok(text)
}

fn checked_name(name: &LitStr) -> Result<String> {
    names::checked(name.value(), name.span())
}

/// Takes `#[column(...)]` off the field.
fn parse_column(field: &mut Field) -> Result<ColumnItem> {
    let ident = field
        .ident
        .clone()
        .ok_or_else(|| Error::new(field.span(), "a column has a name"))?;
    let (mut default, mut was) = (None, None);
    for attribute in field
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("column"))
    {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("was") {
                was = Some(checked_name(&meta.value()?.parse()?)?);
                return Ok(());
            }
            if !meta.path.is_ident("default") {
                return Err(meta.error("unknown option; there are: default, was"));
            }
            default = Some(meta.value()?.parse()?);
            Ok(())
        })?;
    }
    field.attrs.retain(|attribute| !attribute.path().is_ident("column"));
    Ok(ColumnItem {
        name: names::name_of(&ident)?,
        ident,
        ty: field.ty.clone(),
        default,
        was,
    })
}

impl TableItem {
    fn position(&self, column: &Ident) -> Result<u16> {
        let position = self.columns.iter().position(|other| other.ident == *column);
        let missing = || Error::new(column.span(), format!("the table has no column `{column}`"));
        Ok(position.ok_or_else(missing)? as u16)
    }

    fn positions(&self, columns: &[Ident]) -> Result<Vec<u16>> {
        columns.iter().map(|column| self.position(column)).collect()
    }

    fn types(&self, columns: &[Ident]) -> Result<Vec<&Type>> {
        let positions = self.positions(columns)?;
        Ok(positions
            .iter()
            .map(|position| &self.columns[*position as usize].ty)
            .collect())
    }

    /// Columns that can be added to, and their positions.
    fn sums(&self) -> impl Iterator<Item = (u16, &ColumnItem)> {
        let columns = (0_u16..).zip(&self.columns);
        columns.filter(|(_, column)| is_integer(&column.ty) && !self.is_in_key(&column.ident))
    }

    /// True when a key or an index holds the column, or rows are placed by it.
    fn is_in_key(&self, column: &Ident) -> bool {
        let by = match &self.options.placement {
            Some(PlacementOption::By(by)) => by == column,
            _ => false,
        };
        by || self.options.primary_key.contains(column)
            || self.options.indexes.iter().any(|index| index.columns.contains(column))
    }
}

fn row_codec(table: &TableItem) -> Result<TokenStream> {
    let row = &table.item.ident;
    let info = table_info(table)?;
    let count = table.columns.len();
    let types: Vec<_> = table.columns.iter().map(|column| &column.ty).collect();
    let idents: Vec<_> = table.columns.iter().map(|column| &column.ident).collect();
    let places: Vec<_> = (0..count).collect();
    let writer = row_writer(&idents);
    Ok(quote! {
        const _: () = {
            use ::reprise_procedure::{column::{Column as __Column, Layout as __Layout, ReadColumn as __ReadColumn}, table::{ReadRow as __ReadRow, Table as __Table}};
            const LAYOUT: __Layout<#count> = __Layout::new([#((<#types as __Column>::TYPE, <#types as __Column>::NULLABLE)),*]);
            // Rows whose text is longer than usual go over the heap, so a wide table does not fill the guest's stack.
            const ROOM: usize = {
                let bytes = 8 + LAYOUT.fixed_bytes #(+ <#types as __Column>::INLINE_BYTES)*;
                if bytes > 1024 { 1024 } else { bytes }
            };
            impl __Table for #row {
                type Buffer = [u8; ROOM];
                const EMPTY_BUFFER: [u8; ROOM] = [0; ROOM];
                const INFO: &'static ::reprise_procedure::module::TableInfo = &#info;
                #writer
            }
            impl<'r> __ReadRow<'r> for #row {
                #[inline(always)]
                fn read_row(row: &'r [u8]) -> ::core::option::Option<Self> {
                    ::core::option::Option::Some(Self {
                        #(#idents: <#types as __ReadColumn<'r>>::read(row, LAYOUT.places[#places])?,)*
                    })
                }
            }
        };
    })
}

/// Generates the methods that write a row of these fields, where `LAYOUT` is their layout.
pub(crate) fn row_writer(idents: &[&Ident]) -> TokenStream {
    let places = 0..idents.len();
    quote! {
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
    }
}

fn table_info(table: &TableItem) -> Result<TokenStream> {
    let (name, shared) = (&table.name, table.options.is_shared);
    let was = match &table.options.was {
        Some(_) if name.contains('.') => {
            let message = "a table of another module is renamed by that module";
            return Err(Error::new(table.item.ident.span(), message));
        }
        Some(was) => Some(checked_name(was)?),
        None => None,
    };
    let was = option(was.as_ref());
    let docs = names::docs_of(&table.item.attrs);
    let columns = table.columns.iter().map(column_info);
    let primary_key = table.positions(&table.options.primary_key)?;
    let kind = match table.options.kind {
        Some(PointKind::Hash) => quote!(Hash),
        Some(PointKind::Dense) => quote!(Dense),
        None => quote!(Ordered),
    };
    let indexes = table.options.indexes.iter().map(|index| {
        let name = names::name_of(&index.name)?;
        let (columns, unique) = (table.positions(&index.columns)?, index.unique);
        Ok(quote! {
            ::reprise_procedure::module::IndexInfo { name: #name, columns: &[#(#columns),*], unique: #unique }
        })
    });
    let indexes = indexes.collect::<Result<Vec<_>>>()?;
    let placement = match &table.options.placement {
        Some(PlacementOption::By(column)) => {
            let position = table.position(column)?;
            if is_option(&table.columns[position as usize].ty) {
                return Err(Error::new(
                    column.span(),
                    "rows can't be placed by a column that may be null",
                ));
            }
            quote!(By(#position))
        }
        Some(PlacementOption::Local) => quote!(Local),
        Some(PlacementOption::Replicated) | None => quote!(Replicated),
    };
    Ok(quote! {
        ::reprise_procedure::module::TableInfo {
            name: #name,
            docs: #docs,
            shared: #shared,
            was: #was,
            columns: &[#(#columns),*],
            primary_key: &[#(#primary_key),*],
            primary_kind: ::reprise_procedure::abi::IndexKind::#kind,
            indexes: &[#(#indexes),*],
            placement: ::reprise_procedure::abi::TablePlacement::#placement,
        }
    })
}

fn option(text: Option<&String>) -> TokenStream {
    match text {
        Some(text) => quote!(::core::option::Option::Some(#text)),
        None => quote!(::core::option::Option::None),
    }
}

fn column_info(column: &ColumnItem) -> TokenStream {
    let (name, ty, was) = (&column.name, &column.ty, option(column.was.as_ref()));
    let default = match &column.default {
        None => quote!(::core::option::Option::None),
        Some(value) => {
            let value = default_value(value, ty);
            quote! {
                ::core::option::Option::Some(|out| {
                    let value: #ty = #value;
                    ::reprise_procedure::column::Column::push_default(&value, out)
                })
            }
        }
    };
    quote! {
        ::reprise_procedure::module::ColumnInfo {
            name: #name,
            was: #was,
            ty: <#ty as ::reprise_procedure::column::Column>::TYPE,
            variants: <#ty as ::reprise_procedure::column::Column>::VARIANTS,
            nullable: <#ty as ::reprise_procedure::column::Column>::NULLABLE,
            default: #default,
        }
    }
}

/// A text literal becomes the column's own type; anything else must be of that type.
fn default_value(value: &Expr, ty: &Type) -> TokenStream {
    match value {
        Expr::Lit(literal) if matches!(literal.lit, Lit::Str(_)) && !is_option(ty) => quote! {
            <#ty as ::core::convert::TryFrom<&str>>::try_from(#value).expect("the default fits its column")
        },
        _ => quote!(#value),
    }
}

fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

fn index_types(table: &TableItem) -> Result<TokenStream> {
    let row = &table.item.ident;
    let keys = table.options.indexes.iter().map(|index| &index.columns);
    let mut out = TokenStream::new();
    for (number, key) in [&table.options.primary_key].into_iter().chain(keys).enumerate() {
        // A table without a primary key has its rows in the order of insertion as index 0.
        let (number, types) = (number as u16, table.types(key)?);
        out.extend(quote! {
            impl ::reprise_procedure::table::IndexOf<#number> for #row {
                type Columns = (#(#types,)*);
            }
        });
    }
    Ok(out)
}

fn methods(table: &TableItem) -> Result<TokenStream> {
    let row = &table.item.ident;
    let mut methods = quote! {
        /// Inserts a row; an error names the unique index in which its key is taken.
        #[inline]
        pub fn insert(
            tx: &::reprise_procedure::txn::Txn<'_>,
            row: &Self,
        ) -> ::core::result::Result<::reprise_procedure::abi::RowHandle, ::reprise_procedure::table::DuplicateKey> {
            ::reprise_procedure::table::insert(tx, row)
        }
        /// Inserts rows in order, in one host call. An error names the unique index with the duplicate key, and the rows before the
        /// duplicate are inserted: abort, or roll back to a savepoint.
        pub fn insert_many(
            tx: &::reprise_procedure::txn::Txn<'_>,
            rows: &[Self],
        ) -> ::core::result::Result<(), ::reprise_procedure::table::DuplicateKey> {
            ::reprise_procedure::table::insert_many(tx, rows)
        }
    };
    if !table.options.primary_key.is_empty() {
        methods.extend(primary_methods());
        methods.extend(delete_method());
        methods.extend(multi_read_method());
    }
    if table.options.kind.is_none() {
        methods.extend(scan_methods());
    }
    for (position, index) in table.options.indexes.iter().enumerate() {
        methods.extend(index_methods(index, position as u16 + 1));
    }
    let positions = table.columns.iter().enumerate().map(|(position, column)| {
        let (name, position) = (position_const(&column.ident), position as u16);
        quote! { #[doc(hidden)] pub const #name: u16 = #position; }
    });
    methods.extend(add_methods(table));
    methods.extend(sum_columns(table));
    Ok(quote! {
        #[allow(dead_code, non_upper_case_globals)]
        impl #row { #methods #(#positions)* }
    })
}

/// `Table::add_COLUMN(tx, key, delta)` for every integer column outside of keys.
fn add_methods(table: &TableItem) -> TokenStream {
    if table.options.primary_key.is_empty() {
        return TokenStream::new();
    }
    let key = whole_key(0);
    let methods = table.sums().map(|(position, column)| {
        let (ident, ty) = (&column.ident, &column.ty);
        let add = format_ident!("add_{}", names::text_of(ident));
        let doc = format!(
            "Adds to `{}` of the row with this primary key, in one host call; the new value, or none where there is no such row. Overflow ends the transaction.",
            names::text_of(ident)
        );
        quote! {
            #[doc = #doc]
            #[inline]
            pub fn #add(
                tx: &::reprise_procedure::txn::Txn<'_>,
                key: impl #key,
                delta: i64,
            ) -> ::core::option::Option<#ty> {
                let value = ::reprise_procedure::table::add_by_key::<Self, 0>(tx, key, #position, delta);
                value.map(|value| value as #ty)
            }
        }
    });
    methods.collect()
}

/// The constant that holds a column's position, for `#[columns]`.
pub fn position_const(column: &Ident) -> Ident {
    format_ident!("__column_{}", names::text_of(column))
}

fn whole_key(number: u16) -> TokenStream {
    quote!(::reprise_procedure::key::WholeKey<<Self as ::reprise_procedure::table::IndexOf<#number>>::Columns>)
}

pub fn primary_methods() -> TokenStream {
    let key = whole_key(0);
    quote! {
        /// The row with this primary key.
        #[inline]
        pub fn get(
            tx: &::reprise_procedure::txn::Txn<'_>,
            key: impl #key,
        ) -> ::core::option::Option<::reprise_procedure::table::Row<Self>> {
            ::reprise_procedure::table::get::<Self, 0>(tx, key)
        }
        /// Whether there is a row with this primary key; it is not read.
        #[inline]
        pub fn exists(tx: &::reprise_procedure::txn::Txn<'_>, key: impl #key) -> bool {
            ::reprise_procedure::table::exists::<Self, 0>(tx, key)
        }
        /// Reads the row with this primary key, lets `change` work on it and writes it back. False: there is no such row. An error names
        /// the unique index in which its new key is taken.
        pub fn update(
            tx: &::reprise_procedure::txn::Txn<'_>,
            key: impl #key,
            change: impl ::core::ops::FnOnce(&mut Self),
        ) -> ::core::result::Result<bool, ::reprise_procedure::table::DuplicateKey> {
            ::reprise_procedure::table::update_by_key::<Self, 0>(tx, key, change)
        }
        /// The row with this primary key without its values: for `add` and `delete`, which need none.
        #[inline]
        pub fn find(
            tx: &::reprise_procedure::txn::Txn<'_>,
            key: impl #key,
        ) -> ::core::option::Option<::reprise_procedure::table::RowRef<Self>> {
            ::reprise_procedure::table::find::<Self, 0>(tx, key)
        }
        /// The rows with these primary keys, in their order, in one host call.
        pub fn multi_get<K: #key>(
            tx: &::reprise_procedure::txn::Txn<'_>,
            keys: impl ::core::iter::IntoIterator<Item = K>,
        ) -> ::std::vec::Vec<::core::option::Option<::reprise_procedure::table::Row<Self>>> {
            ::reprise_procedure::table::multi_get::<Self, K, 0>(tx, keys)
        }
    }
}

fn delete_method() -> TokenStream {
    let key = whole_key(0);
    quote! {
        /// Deletes the row with this primary key. False: there is no such row.
        pub fn delete(tx: &::reprise_procedure::txn::Txn<'_>, key: impl #key) -> bool {
            ::reprise_procedure::table::find::<Self, 0>(tx, key).map(|row| row.delete(tx)).is_some()
        }
    }
}

/// Methods also of rows that borrow their texts.
pub fn multi_read_method() -> TokenStream {
    let key = whole_key(0);
    quote! {
        /// The rows with these primary keys, in their order, in one host call; each is decoded when it is asked for.
        #[inline]
        pub fn multi_read<K: #key>(
            tx: &::reprise_procedure::txn::Txn<'_>,
            keys: impl ::core::iter::IntoIterator<Item = K>,
        ) -> ::reprise_procedure::table::FoundRows<Self> {
            ::reprise_procedure::table::multi_read::<Self, K, 0>(tx, keys)
        }
    }
}

/// Reads of rows that borrow their texts from the caller's room.
pub fn borrowed_methods(lifetime: &Lifetime) -> TokenStream {
    let key = whole_key(0);
    quote! {
        /// The row with this primary key, its texts in `room`.
        #[inline]
        pub fn get_in(
            tx: &::reprise_procedure::txn::Txn<'_>,
            key: impl #key,
            room: &#lifetime mut ::reprise_procedure::table::RowRoom<Self>,
        ) -> ::core::option::Option<::reprise_procedure::table::Row<Self>> {
            ::reprise_procedure::table::get_in::<Self, 0>(tx, key, room)
        }
        /// Reads these columns of the row behind a handle of the table, their texts in `room`.
        #[inline]
        pub fn read_in(
            tx: &::reprise_procedure::txn::Txn<'_>,
            handle: ::reprise_procedure::abi::RowHandle,
            room: &#lifetime mut ::reprise_procedure::table::RowRoom<Self>,
        ) -> ::reprise_procedure::table::Row<Self> {
            ::reprise_procedure::table::read_in(tx, handle, room)
        }
    }
}

fn scan_methods() -> TokenStream {
    quote! {
        /// Returns the rows in order of the primary key; narrow it with `prefix`, `range`, `reverse`, `limit`. It shows the rows of its
        /// beginning. A scan without the partition column is for procedures over all partitions.
        #[inline]
        pub fn scan<'t, 'h>(
            tx: &'t ::reprise_procedure::txn::Txn<'h>,
        ) -> ::reprise_procedure::scan::Scan<'t, 'h, Self, 0> {
            ::reprise_procedure::scan::Scan::new(tx)
        }
        /// Scans like `scan`, but only rows on the call's own partitions.
        #[inline]
        pub fn scan_local<'t, 'h>(
            tx: &'t ::reprise_procedure::txn::Txn<'h>,
        ) -> ::reprise_procedure::scan::Scan<'t, 'h, Self, 0> {
            ::reprise_procedure::scan::Scan::local(tx)
        }
        /// The number of rows that lie on the call's own partitions.
        pub fn count_local(tx: &::reprise_procedure::txn::Txn<'_>) -> u64 {
            Self::scan_local(tx).count()
        }
        /// The number of rows, for procedures over all partitions.
        pub fn count(tx: &::reprise_procedure::txn::Txn<'_>) -> u64 {
            Self::scan(tx).count()
        }
    }
}

fn index_methods(index: &IndexOption, number: u16) -> TokenStream {
    let method = index.method_name();
    let scan = format_ident!("scan_by_{}", method);
    let scan_doc = format!("The rows in order of index `{}`; see `scan`.", index.name);
    let local = format_ident!("scan_local_by_{}", method);
    let local_doc = format!(
        "The rows on the call's own partitions in order of index `{}`; see `scan_local`.",
        index.name
    );
    let mut methods = quote! {
        #[doc = #scan_doc]
        #[inline]
        pub fn #scan<'t, 'h>(
            tx: &'t ::reprise_procedure::txn::Txn<'h>,
        ) -> ::reprise_procedure::scan::Scan<'t, 'h, Self, #number> {
            ::reprise_procedure::scan::Scan::new(tx)
        }
        #[doc = #local_doc]
        #[inline]
        pub fn #local<'t, 'h>(
            tx: &'t ::reprise_procedure::txn::Txn<'h>,
        ) -> ::reprise_procedure::scan::Scan<'t, 'h, Self, #number> {
            ::reprise_procedure::scan::Scan::local(tx)
        }
    };
    if index.unique {
        let (get, key) = (format_ident!("get_by_{}", method), whole_key(number));
        let get_doc = format!("The row with this key in index `{}`.", index.name);
        methods.extend(quote! {
            #[doc = #get_doc]
            #[inline]
            pub fn #get(
                tx: &::reprise_procedure::txn::Txn<'_>,
                key: impl #key,
            ) -> ::core::option::Option<::reprise_procedure::table::Row<Self>> {
                ::reprise_procedure::table::get::<Self, #number>(tx, key)
            }
        });
    }
    methods
}

/// `Table::COLUMN` for every integer column outside of keys: what `row.add(tx, Table::COLUMN, delta)` takes.
fn sum_columns(table: &TableItem) -> TokenStream {
    let columns = table.sums().map(|(position, column)| {
        let (name, ty) = (names::text_of(&column.ident), &column.ty);
        let (constant, field) = (format_ident!("{}", name.to_uppercase()), &column.ident);
        let doc = format!("The column `{name}`, for `row.add(tx, …, delta)`.");
        quote! {
            #[doc = #doc]
            pub const #constant: ::reprise_procedure::table::SumColumn<Self, #ty> =
                ::reprise_procedure::table::SumColumn::new(#position, |row, value| row.#field = value);
        }
    });
    columns.collect()
}

fn is_integer(ty: &Type) -> bool {
    const INTEGERS: [&str; 8] = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"];
    matches!(ty, Type::Path(path) if INTEGERS.iter().any(|name| path.path.is_ident(name)))
}
