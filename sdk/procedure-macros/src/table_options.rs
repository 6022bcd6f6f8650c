//! The options of `#[table(...)]`, parsed and checked against the struct's fields.

use std::collections::BTreeSet;

use proc_macro2::Span;
use syn::{
    Error, Ident, LitStr, Result, Token, parenthesized,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

use crate::names;

/// Where the rows lie.
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

/// Columns at most in one key: what the SDK's key traits are written for.
const KEY_COLUMNS_MAX: usize = 6;

impl Parse for TableOptions {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        let mut seen = BTreeSet::new();
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            let is_index = option == "index" || option == "unique";
            if !is_index && !seen.insert(option.to_string()) {
                return Err(Error::new(
                    option.span(),
                    format!("`{option}` is given twice"),
                ));
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
                let mut columns = parse_columns(input)?;
                if columns.len() < 2 {
                    return Err(Error::new(
                        option.span(),
                        format!("write `{option}(name, column, …)`"),
                    ));
                }
                let name = columns.remove(0);
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
            return Err(Error::new(
                span,
                "a primary key is either `hash` or `dense`",
            ));
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
            if !names.insert(names::name_of(&index.name)?) {
                return Err(Error::new(index.name.span(), "two indexes have this name"));
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
                format!("the primary key must hold the partition column `{by}`"),
            ));
        }
        let mut unique = self.indexes.iter().filter(|index| index.unique);
        match unique.find(|index| !index.columns.contains(by)) {
            None => Ok(()),
            Some(index) => Err(Error::new(
                index.name.span(),
                format!("a unique index must hold the partition column `{by}`"),
            )),
        }
    }
}

fn parse_columns(input: ParseStream<'_>) -> Result<Vec<Ident>> {
    let inner;
    parenthesized!(inner in input);
    let columns = Punctuated::<Ident, Token![,]>::parse_terminated(&inner)?;
    let mut seen = BTreeSet::new();
    for column in &columns {
        if !seen.insert(column.to_string()) {
            return Err(Error::new(column.span(), "this column is named twice"));
        }
    }
    if columns.is_empty() {
        return Err(inner.error("name at least one column"));
    }
    Ok(columns.into_iter().collect())
}
