//! `#[procedure]`: the function stays as it is; a type of the same name carries its declaration and its entry.

use std::{fmt::Display, str::FromStr};

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{
    Error, Expr, FnArg, Ident, ItemFn, LitInt, LitStr, Pat, Path, Result, ReturnType, Token, Type, parenthesized,
    parse::{Parse, ParseStream},
    parse2,
    punctuated::Punctuated,
    spanned::Spanned,
};

use crate::names;

enum PartitioningOption {
    By(Vec<Ident>),
    All,
    Any,
}

#[derive(Default)]
struct ProcedureOptions {
    partitioning: Option<PartitioningOption>,
    read_only: bool,
    /// The variant of `LogDeclaration`.
    log: Option<Ident>,
    time_max_ms: Option<LitInt>,
    fuel_max: Option<LitInt>,
    aborts: Vec<AbortOption>,
    prefetch: Vec<PrefetchOption>,
}

/// `code = "when"` in `aborts(…)`.
struct AbortOption {
    code: String,
    docs: String,
}

impl Parse for AbortOption {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let code = match input.peek(LitStr) {
            true => input.parse::<LitStr>()?.value(),
            false => names::text_of(&input.parse()?),
        };
        let docs = match input.parse::<Option<Token![=]>>()? {
            Some(_) => input.parse::<LitStr>()?.value(),
            None => String::new(),
        };
        Ok(Self { code, docs })
    }
}

/// `Table(part, …)` in `prefetch(…)`.
struct PrefetchOption {
    table: Path,
    key: Vec<PrefetchPartOption>,
}

enum PrefetchPartOption {
    Param(Ident),
    Int(Expr),
}

impl Parse for PrefetchOption {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let table = input.parse()?;
        let inner;
        parenthesized!(inner in input);
        let key = Punctuated::<PrefetchPartOption, Token![,]>::parse_terminated(&inner)?;
        Ok(Self {
            table,
            key: key.into_iter().collect(),
        })
    }
}

impl Parse for PrefetchPartOption {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        match input.peek(Ident) {
            true => Ok(Self::Param(input.parse()?)),
            false => Ok(Self::Int(input.parse()?)),
        }
    }
}

/// `= N`, a number that fits the type.
fn parse_number<N: FromStr<Err: Display>>(input: ParseStream<'_>) -> Result<LitInt> {
    input.parse::<Token![=]>()?;
    let number: LitInt = input.parse()?;
    number.base10_parse::<N>()?;
    Ok(number)
}

impl Parse for ProcedureOptions {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            let partitioning = match option.to_string().as_str() {
                "read_only" => {
                    options.read_only = true;
                    None
                }
                "partition_by" => {
                    let inner;
                    parenthesized!(inner in input);
                    let params = Punctuated::<Ident, Token![,]>::parse_terminated(&inner)?;
                    if params.is_empty() {
                        return Err(inner.error("name at least one parameter"));
                    }
                    Some(PartitioningOption::By(params.into_iter().collect()))
                }
                "log" => {
                    options.log = Some(parse_log(input)?);
                    None
                }
                "time_max_ms" => {
                    options.time_max_ms = Some(parse_number::<u32>(input)?);
                    None
                }
                "fuel_max" => {
                    options.fuel_max = Some(parse_number::<u64>(input)?);
                    None
                }
                "aborts" => {
                    let inner;
                    parenthesized!(inner in input);
                    let aborts = Punctuated::<AbortOption, Token![,]>::parse_terminated(&inner)?;
                    options.aborts.extend(aborts);
                    None
                }
                "prefetch" => {
                    let inner;
                    parenthesized!(inner in input);
                    let rows = Punctuated::<PrefetchOption, Token![,]>::parse_terminated(&inner)?;
                    options.prefetch.extend(rows);
                    None
                }
                "all_partitions" => Some(PartitioningOption::All),
                "any_partition" => Some(PartitioningOption::Any),
                _ => {
                    return Err(Error::new(
                        option.span(),
                        "unknown option; there are: partition_by(parameter, …), all_partitions, any_partition, read_only, log = \"command\" | \"physiological\" | \"auto\", time_max_ms = N, fuel_max = N, aborts(code = \"when\", …), prefetch(Table(key, …), …)",
                    ));
                }
            };
            if partitioning.is_some() {
                if options.partitioning.is_some() {
                    return Err(Error::new(option.span(), "the partitions are already given"));
                }
                options.partitioning = partitioning;
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// `= "command"` and the like.
fn parse_log(input: ParseStream<'_>) -> Result<Ident> {
    input.parse::<Token![=]>()?;
    let choice: LitStr = input.parse()?;
    let variant = match choice.value().as_str() {
        "command" => "Command",
        "physiological" => "Physiological",
        "auto" => "Auto",
        _ => {
            return Err(Error::new(
                choice.span(),
                "there are: \"command\", \"physiological\", \"auto\"",
            ));
        }
    };
    Ok(Ident::new(variant, choice.span()))
}

struct Param {
    /// Name in the function.
    ident: Ident,
    name: String,
    ty: Type,
}

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options: ProcedureOptions = parse2(options)?;
    let function: ItemFn = parse2(item)?;
    check_signature(&function, &options)?;
    let params = params_of(&function)?;
    let partitioning = partitioning_of(&options, &params, &function)?;
    let (ident, visibility) = (&function.sig.ident, &function.vis);
    let prefetch = prefetch_of(&options, &params)?;
    let (name, read_only) = (names::name_of(ident)?, options.read_only);
    let log = options.log.clone();
    let log = log.unwrap_or_else(|| Ident::new("Server", Span::call_site()));
    let (time_max_ms, fuel_max) = (
        optional(options.time_max_ms.as_ref()),
        optional(options.fuel_max.as_ref()),
    );
    let aborts = aborts_of(options.aborts, &function);
    let names: Vec<_> = params.iter().map(|param| &param.name).collect();
    // Names that no procedure has, for its own stands among them.
    let idents: Vec<_> = (0..params.len())
        .map(|number| format_ident!("__arg_{number}"))
        .collect();
    let types: Vec<_> = params.iter().map(|param| &param.ty).collect();
    let (returns, result) = match result_of(&function.sig.output) {
        ReturnKind::Result(ty) => (quote!(#ty), quote!(#ident(__tx #(, #idents)*))),
        ReturnKind::Plain(ty) => (
            quote!(#ty),
            quote!(::core::result::Result::Ok(#ident(__tx #(, #idents)*))),
        ),
    };
    let docs = names::docs_of(&function.attrs);
    let caller = caller(&function, &params, &name, &returns);
    let about = format!("The procedure `{name}`: its declaration, and `{name}::call` for tests.");
    Ok(quote! {
        #function

        #[allow(non_camel_case_types)]
        #[doc = #about]
        #visibility struct #ident {}

        #caller

        impl ::reprise_procedure::module::Procedure for #ident {
            const INFO: &'static ::reprise_procedure::module::ProcedureInfo = &::reprise_procedure::module::ProcedureInfo {
                name: #name,
                docs: #docs,
                params: &[#((#names, <#types as ::reprise_procedure::value::ValueType>::value_type as fn() -> _)),*],
                returns: <#returns as ::reprise_procedure::value::ValueType>::value_type,
                read_only: #read_only,
                partitioning: ::reprise_procedure::module::PartitioningInfo::#partitioning,
                log: ::reprise_procedure::module::LogDeclaration::#log,
                time_max_ms: #time_max_ms,
                fuel_max: #fuel_max,
                aborts: &[#(#aborts),*],
                prefetch: &[#(#prefetch),*],
            };
            #[inline]
            fn run(
                __tx: &::reprise_procedure::txn::Txn<'_>,
                __args: &[u8],
            ) -> ::core::result::Result<(), ::reprise_procedure::module::Abort> {
                let mut __reader = ::reprise_procedure::module::ArgReader::new(__args);
                #(let #idents: #types = __reader.take();)*
                __reader.finish();
                ::reprise_procedure::module::finish::<#returns>(__tx, #result)
            }
        }
    })
}

/// `NAME::call(&mut db, …)`, with the procedure's own parameters. The result's type follows from the procedure, for it implements
/// `Returns` of that type alone.
fn caller(function: &ItemFn, params: &[Param], name: &str, returns: &TokenStream) -> TokenStream {
    let (ident, visibility) = (&function.sig.ident, &function.vis);
    let names: Vec<_> = params.iter().map(|param| &param.ident).collect();
    let types: Vec<_> = params.iter().map(|param| owned_list(&param.ty)).collect();
    let doc = format!("Calls `{name}` on a test database, through the encoding of a call over HTTP.");
    quote! {
        #[cfg(not(target_arch = "wasm32"))]
        impl ::reprise_procedure::testkit::Returns<#returns> for #ident {}

        #[cfg(not(target_arch = "wasm32"))]
        #[allow(dead_code, clippy::too_many_arguments)]
        impl #ident {
            #[doc = #doc]
            #visibility fn call<__R: for<'__r> ::reprise_procedure::value::Decode<'__r>>(
                __db: &mut ::reprise_procedure::testkit::TestDb,
                #(#names: #types,)*
            ) -> ::core::result::Result<__R, ::reprise_procedure::testkit::TestError>
            where
                Self: ::reprise_procedure::testkit::Returns<__R>,
            {
                let mut __args = ::reprise_procedure::scratch::Scratch::new();
                #(__args.push_value(&#names);)*
                __db.call_encoded(#name, &__args)
            }
        }
    }
}

/// A list that a procedure reads in place, as its caller has it.
fn owned_list(ty: &Type) -> TokenStream {
    if let Type::Path(path) = ty
        && let Some(last) = path.path.segments.last()
        && last.ident == "ListRef"
        && let syn::PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(syn::GenericArgument::Type(item)) = arguments.args.last()
    {
        return quote!(::std::vec::Vec<#item>);
    }
    quote!(#ty)
}

fn check_signature(function: &ItemFn, options: &ProcedureOptions) -> Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_some() || !signature.generics.params.is_empty() {
        return Err(Error::new(signature.span(), "a procedure is neither async nor generic"));
    }
    let takes_txn =
        matches!(signature.inputs.first(), Some(FnArg::Typed(first)) if matches!(*first.ty, Type::Reference(_)));
    if !takes_txn {
        return Err(Error::new(
            signature.ident.span(),
            "a procedure's first parameter is `tx: &Txn`",
        ));
    }
    if matches!(options.partitioning, Some(PartitioningOption::Any)) && !options.read_only {
        return Err(Error::new(
            signature.ident.span(),
            "`any_partition` is for `read_only` procedures: a write must say which partitions it goes to",
        ));
    }
    Ok(())
}

fn params_of(function: &ItemFn) -> Result<Vec<Param>> {
    let params = function.sig.inputs.iter().skip(1).map(|input| {
        let FnArg::Typed(input) = input else {
            return Err(Error::new(input.span(), "a procedure has no `self`"));
        };
        let Pat::Ident(pattern) = &*input.pat else {
            return Err(Error::new(
                input.pat.span(),
                "a parameter is a plain name: callers pass it by name",
            ));
        };
        let ident = pattern.ident.clone();
        Ok(Param {
            name: names::name_of(&ident)?,
            ident,
            ty: (*input.ty).clone(),
        })
    });
    params.collect()
}

fn optional(number: Option<&LitInt>) -> TokenStream {
    match number {
        Some(number) => quote!(::core::option::Option::Some(#number)),
        None => quote!(::core::option::Option::None),
    }
}

/// The abort codes of a procedure: declared codes, then codes that are literals in an `abort!` of its body.
fn aborts_of(declared: Vec<AbortOption>, function: &ItemFn) -> Vec<TokenStream> {
    let mut aborts = declared;
    let mut found = Vec::new();
    find_aborts(function.block.to_token_stream(), &mut found);
    for code in found {
        if aborts.iter().all(|abort| abort.code != code) {
            let docs = String::new();
            aborts.push(AbortOption { code, docs });
        }
    }
    let aborts = aborts.iter().map(|AbortOption { code, docs }| {
        quote!(::reprise_procedure::module::AbortInfo {
            code: #code,
            docs: #docs,
        })
    });
    aborts.collect()
}

/// The first argument of each `abort!(…)` that is a text, at any depth.
fn find_aborts(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let is_abort = matches!(
            at.checked_sub(2).and_then(|before| tokens.get(before..at)),
            Some([TokenTree::Ident(name), TokenTree::Punct(mark)]) if name == "abort" && mark.as_char() == '!'
        );
        if is_abort && let Some(code) = first_text(group.stream()) {
            found.push(code);
        }
        find_aborts(group.stream(), found);
    }
}

fn first_text(tokens: TokenStream) -> Option<String> {
    let first = tokens.into_iter().next()?;
    Some(parse2::<LitStr>(first.into()).ok()?.value())
}

fn prefetch_of(options: &ProcedureOptions, params: &[Param]) -> Result<Vec<TokenStream>> {
    let rows = options.prefetch.iter().map(|prefetch| {
        let parts = prefetch.key.iter().map(|part| match part {
            PrefetchPartOption::Int(value) => Ok(quote!(::reprise_procedure::module::PrefetchPart::Int(#value))),
            PrefetchPartOption::Param(wanted) => {
                let position = position_of(params, wanted)?;
                Ok(quote!(::reprise_procedure::module::PrefetchPart::Param(#position)))
            }
        });
        let (table, parts) = (&prefetch.table, parts.collect::<Result<Vec<_>>>()?);
        Ok(quote!(::reprise_procedure::module::PrefetchInfo {
            table: <#table as ::reprise_procedure::table::Table>::INFO.name,
            key: &[#(#parts),*],
        }))
    });
    rows.collect()
}

fn position_of(params: &[Param], wanted: &Ident) -> Result<u16> {
    let name = names::text_of(wanted);
    let position = params.iter().position(|param| param.name == name);
    let missing = || Error::new(wanted.span(), format!("the procedure has no parameter `{name}`"));
    Ok(position.ok_or_else(missing)? as u16)
}

fn partitioning_of(options: &ProcedureOptions, params: &[Param], function: &ItemFn) -> Result<TokenStream> {
    match &options.partitioning {
        None => Err(Error::new(
            function.sig.ident.span(),
            "say which partitions it touches: `partition_by(parameter, …)`, `all_partitions` or `any_partition`",
        )),
        Some(PartitioningOption::All) => Ok(quote!(All)),
        Some(PartitioningOption::Any) => Ok(quote!(Any)),
        Some(PartitioningOption::By(by)) => {
            let positions = by.iter().map(|wanted| position_of(params, wanted));
            let positions = positions.collect::<Result<Vec<_>>>()?;
            Ok(quote!(By(&[#(#positions),*])))
        }
    }
}

/// The function ends in a `Result`.
pub fn returns_result(output: &ReturnType) -> bool {
    matches!(result_of(output), ReturnKind::Result(_))
}

enum ReturnKind {
    /// `Result<T, Abort>`
    Result(Type),
    /// A procedure that never aborts.
    Plain(Type),
}

fn result_of(output: &ReturnType) -> ReturnKind {
    let ReturnType::Type(_, ty) = output else {
        return ReturnKind::Plain(syn::parse_quote!(()));
    };
    if let Type::Path(path) = &**ty
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let syn::PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(syn::GenericArgument::Type(value)) = arguments.args.first()
    {
        return ReturnKind::Result(value.clone());
    }
    ReturnKind::Plain((**ty).clone())
}
