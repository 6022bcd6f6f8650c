//! The options of `#[table(...)]`, parsed and checked against the struct's fields.

use std::collections::BTreeSet;

use proc_macro2::Span;
use syn::{
    Error, Ident, LitStr, Result, Token, parenthesized,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

use crate::names;

/// Placement of the rows.
pub enum PlacementOption {
    By(Ident),
    Replicated,
    Local,
}

/// Kinds of a primary key that is found by its whole value alone.
#[derive(Clone, Copy)]
pub enum PointKind {
    Hash,
    Dense,
}

/// A secondary index.
pub struct IndexOption {
    pub name: Ident,
    pub columns: Vec<Ident>,
    pub unique: bool,
}

impl IndexOption {
    /// Suffix of `scan_by_` and `get_by_`: the index's name without a leading `by_`.
    pub fn method_name(&self) -> String {
        let name = names::text_of(&self.name);
        match name.strip_prefix("by_") {
            Some(rest) if !rest.is_empty() => rest.to_owned(),
            _ => name,
        }
    }
}

/// Advice for a key that must be unique on all partitions.
const UNIQUE_RECIPE: &str = "For a value that is unique over all of them, keep a table by that value beside this one, such as \
    `#[table(primary_key(email), partition_by = email)] struct Email { email: String, customer: i64 }`, and write both in one procedure \
    that is placed by all values that it touches: `partition_by(customer, old_email, new_email)`";

#[derive(Default)]
pub struct TableOptions {
    pub name: Option<LitStr>,
    pub was: Option<LitStr>,
    pub is_shared: bool,
    pub primary_key: Vec<Ident>,
    /// How the primary key is found, when not by order.
    pub kind: Option<PointKind>,
    pub indexes: Vec<IndexOption>,
    pub placement: Option<PlacementOption>,
}

/// Number of columns in one key at most, for which the SDK's key traits are written.
const KEY_COLUMNS_MAX: usize = 6;

impl Parse for TableOptions {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        let mut seen = BTreeSet::new();
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            let is_index = option == "index" || option == "unique";
            if !is_index && !seen.insert(option.to_string()) {
                return Err(Error::new(option.span(), format!("`{option}` is given twice")));
            }
            options.parse_option(&option, input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

impl TableOptions {
    fn parse_option(&mut self, option: &Ident, input: ParseStream<'_>) -> Result<()> {
        match option.to_string().as_str() {
            "name" => {
                input.parse::<Token![=]>()?;
                self.name = Some(input.parse()?);
            }
            "was" => {
                input.parse::<Token![=]>()?;
                self.was = Some(input.parse()?);
            }
            "shared" => self.is_shared = true,
            "primary_key" => self.primary_key = parse_columns(input)?,
            "hash" => self.find_by(option.span(), PointKind::Hash)?,
            "dense" => self.find_by(option.span(), PointKind::Dense)?,
            "index" | "unique" => {
                let mut columns = parse_names(input)?;
                if columns.len() < 2 {
                    return Err(Error::new(option.span(), format!("write `{option}(name, column, …)`")));
                }
                // The name may be a column's, too.
                let name = columns.remove(0);
                check_columns(&columns)?;
                self.indexes.push(IndexOption {
                    name,
                    columns,
                    unique: option == "unique",
                });
            }
            "partition_by" => {
                input.parse::<Token![=]>()?;
                let column = input.parse()?;
                self.place(option.span(), PlacementOption::By(column))?;
            }
            "replicated" => self.place(option.span(), PlacementOption::Replicated)?,
            "local" => self.place(option.span(), PlacementOption::Local)?,
            _ => {
                return Err(Error::new(
                    option.span(),
                    "unknown option; there are: name, was, shared, primary_key, hash, dense, index, unique, partition_by, replicated, local",
                ));
            }
        }
        Ok(())
    }

    fn place(&mut self, span: Span, placement: PlacementOption) -> Result<()> {
        if self.placement.replace(placement).is_some() {
            return Err(Error::new(
                span,
                "rows lie in one way only: partition_by, replicated or local",
            ));
        }
        Ok(())
    }

    fn find_by(&mut self, span: Span, kind: PointKind) -> Result<()> {
        if self.kind.replace(kind).is_some() {
            return Err(Error::new(span, "a primary key is either `hash` or `dense`"));
        }
        Ok(())
    }

    /// Checks what no single option shows.
    pub fn check(&self, item: Span) -> Result<()> {
        if self.placement.is_none() {
            return Err(Error::new(
                item,
                "say where rows lie: `partition_by = column`, `replicated` (every row everywhere) or `local`",
            ));
        }
        if self.kind.is_some() && self.primary_key.is_empty() {
            return Err(Error::new(
                item,
                "`hash` and `dense` are kinds of a primary key, and this table has none",
            ));
        }
        self.check_placement(item)?;
        let mut names = BTreeSet::new();
        for index in &self.indexes {
            names::name_of(&index.name)?;
            if !names.insert(index.method_name()) {
                let message = format!("two indexes are read by `scan_by_{}`", index.method_name());
                return Err(Error::new(index.name.span(), message));
            }
        }
        let keys = self.indexes.iter().map(|index| &index.columns);
        for key in keys.chain([&self.primary_key]) {
            if let Some(extra) = key.get(KEY_COLUMNS_MAX) {
                return Err(Error::new(extra.span(), "a key has at most 6 columns"));
            }
        }
        Ok(())
    }

    /// Uniqueness is kept per partition, so a unique key must say on which one it lies.
    fn check_placement(&self, item: Span) -> Result<()> {
        let by = match &self.placement {
            Some(PlacementOption::Replicated) if self.primary_key.is_empty() => {
                return Err(Error::new(item, "a replicated table has a primary key"));
            }
            Some(PlacementOption::By(column)) => column,
            _ => return Ok(()),
        };
        if !self.primary_key.is_empty() && !self.primary_key.contains(by) {
            return Err(Error::new(
                by.span(),
                format!(
                    "the primary key must hold the partition column `{by}`, for it is judged on one partition. {UNIQUE_RECIPE}"
                ),
            ));
        }
        let mut unique = self.indexes.iter().filter(|index| index.unique);
        match unique.find(|index| !index.columns.contains(by)) {
            None => Ok(()),
            Some(index) => Err(Error::new(
                index.name.span(),
                format!(
                    "a unique index must hold the partition column `{by}`, for it is judged on one partition. {UNIQUE_RECIPE}"
                ),
            )),
        }
    }
}

fn parse_columns(input: ParseStream<'_>) -> Result<Vec<Ident>> {
    let columns = parse_names(input)?;
    check_columns(&columns)?;
    Ok(columns)
}

fn parse_names(input: ParseStream<'_>) -> Result<Vec<Ident>> {
    let inner;
    parenthesized!(inner in input);
    let names = Punctuated::<Ident, Token![,]>::parse_terminated(&inner)?;
    if names.is_empty() {
        return Err(inner.error("name at least one column"));
    }
    Ok(names.into_iter().collect())
}

fn check_columns(columns: &[Ident]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match columns.iter().find(|column| !seen.insert(column.to_string())) {
        None => Ok(()),
        Some(twice) => Err(Error::new(twice.span(), "this column is named twice")),
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn refused(options: proc_macro2::TokenStream) -> String {
        let checked = syn::parse2::<TableOptions>(options).and_then(|options| options.check(Span::call_site()));
        checked.map_or_else(|error| error.to_string(), |()| "taken".to_owned())
    }

    #[test]
    fn an_index_may_have_a_columns_name() {
        assert_eq!(
            refused(quote!(index(state, event, state), partition_by = event)),
            "taken"
        );
        assert_eq!(
            refused(quote!(index(a, event, state, event), local)),
            "this column is named twice"
        );
        assert_eq!(
            refused(quote!(index(a, b), index(by_a, b), local)),
            "two indexes are read by `scan_by_a`"
        );
        assert_eq!(refused(quote!(index(a), local)), "write `index(name, column, …)`");
    }

    #[test]
    fn unique_index_over_partitions_is_refused_with_a_remedy() {
        for options in [
            quote!(primary_key(id), unique(email, email), partition_by = id),
            quote!(primary_key(id), partition_by = email),
        ] {
            let message = refused(options);
            assert!(
                message.contains("must hold the partition column") && message.contains("struct Email"),
                "{message}"
            );
        }
    }
}
