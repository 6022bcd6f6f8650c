//! `module!`: positions for the tables, the wasm exports, and the module as a native value.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Error, Ident, Path, Result, Token, bracketed,
    parse::{Parse, ParseStream},
    parse2,
    punctuated::Punctuated,
};

use crate::names;

#[derive(Default)]
struct ModuleItem {
    tables: Vec<Path>,
    retiring: Vec<Path>,
    procedures: Vec<Path>,
    on_deploy: Option<Path>,
}

impl Parse for ModuleItem {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut module = Self::default();
        while !input.is_empty() {
            let part: Ident = input.parse()?;
            input.parse::<Token![:]>()?;
            if part == "on_deploy" {
                module.on_deploy = Some(Path::parse_mod_style(input)?);
                parse_comma(input)?;
                continue;
            }
            let inner;
            bracketed!(inner in input);
            let paths = Punctuated::<Path, Token![,]>::parse_terminated_with(&inner, Path::parse_mod_style)?;
            match part.to_string().as_str() {
                "tables" => module.tables = paths.into_iter().collect(),
                "retiring" => module.retiring = paths.into_iter().collect(),
                "procedures" => module.procedures = paths.into_iter().collect(),
                _ => {
                    return Err(Error::new(
                        part.span(),
                        "a module has `tables: […]`, `procedures: […]` and, where something is to run when it is deployed, `on_deploy: name` and `retiring: […]`",
                    ));
                }
            }
            parse_comma(input)?;
        }
        Ok(module)
    }
}

/// A comma, unless it is the end.
fn parse_comma(input: ParseStream<'_>) -> Result<()> {
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(())
}

pub fn expand(item: TokenStream) -> Result<TokenStream> {
    let ModuleItem {
        tables,
        retiring,
        procedures,
        on_deploy,
    } = parse2(item)?;
    if let (Some(first), None) = (retiring.first(), &on_deploy) {
        return Err(Error::new_spanned(
            first,
            "a retiring table is seen by what runs at the deployment alone: name it as `on_deploy`",
        ));
    }
    let (name, native, entry) = migration(on_deploy);
    let (numbers, retiring_numbers) = (0..tables.len() as u16, tables.len() as u16..);
    let exports = exports(&procedures)?;
    Ok(quote! {
        #(impl ::reprise_procedure::table::InModule for #tables {
            const TABLE: u16 = #numbers;
        })*

        #(impl ::reprise_procedure::table::InModule for #retiring {
            const TABLE: u16 = #retiring_numbers;
        })*

        /// This module compiled into the program: its description and its procedures.
        #[cfg(not(target_arch = "wasm32"))]
        pub static MODULE: ::reprise_procedure::native::NativeModule = ::reprise_procedure::native::NativeModule {
            tables: &[#(<#tables as ::reprise_procedure::table::Table>::INFO),*],
            procedures: &[#(::reprise_procedure::native::NativeProcedure {
                info: <#procedures as ::reprise_procedure::module::Procedure>::INFO,
                run: <#procedures as ::reprise_procedure::module::Procedure>::run,
            }),*],
            on_deploy: #native,
            retiring: &[#(<#retiring as ::reprise_procedure::table::Table>::INFO),*],
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            #[unsafe(no_mangle)]
            extern "C" fn _initialize() {
                ::reprise_procedure::ops::initialize();
            }
            #[unsafe(no_mangle)]
            extern "C" fn reprise_describe() -> u64 {
                ::reprise_procedure::ops::describe(
                    &[#(<#tables as ::reprise_procedure::table::Table>::INFO),*],
                    &[#(<#procedures as ::reprise_procedure::module::Procedure>::INFO),*],
                    #name,
                    &[#(<#retiring as ::reprise_procedure::table::Table>::INFO),*],
                )
            }
            #[unsafe(no_mangle)]
            extern "C" fn reprise_args_buffer() -> u64 {
                ::reprise_procedure::ops::args_buffer_slice()
            }
            #[unsafe(no_mangle)]
            extern "C" fn reprise_result_buffer() -> u64 {
                ::reprise_procedure::ops::result_buffer_slice()
            }
            #entry
            #(#[unsafe(no_mangle)]
            extern "C" fn #exports(args_bytes: u32) -> i32 {
                ::reprise_procedure::ops::enter(args_bytes, <#procedures as ::reprise_procedure::module::Procedure>::run)
            })*
        };
    })
}

/// Names of the wasm exports by which procedures are called.
fn exports(procedures: &[Path]) -> Result<Vec<Ident>> {
    let mut exports = Vec::new();
    let mut seen = BTreeSet::new();
    for path in procedures {
        let Some(last) = path.segments.last() else {
            return Err(Error::new_spanned(path, "name a procedure"));
        };
        let name = names::name_of(&last.ident)?;
        if !seen.insert(name.clone()) {
            return Err(Error::new(last.ident.span(), "two procedures have this name"));
        }
        exports.push(format_ident!("reprise_call_{}", name));
    }
    Ok(exports)
}

/// Code for the deployment function: its name, if there is one, its entry in the native module, and its export.
fn migration(on_deploy: Option<Path>) -> (TokenStream, TokenStream, TokenStream) {
    let Some(path) = on_deploy else {
        let none = quote!(::core::option::Option::None);
        return (none.clone(), none, TokenStream::new());
    };
    let name = quote!(<#path as ::reprise_procedure::module::OnDeploy>::NAME);
    let run = quote!(<#path as ::reprise_procedure::module::OnDeploy>::run);
    let entry = quote! {
        #[unsafe(no_mangle)]
        extern "C" fn reprise_on_deploy(args_bytes: u32) -> i32 {
            ::reprise_procedure::ops::enter(args_bytes, #run)
        }
    };
    let native =
        quote!(::core::option::Option::Some(::reprise_procedure::native::NativeMigration { name: #name, run: #run }));
    (quote!(::core::option::Option::Some(#name)), native, entry)
}
