//! `#[on_deploy]`: the function stays as it is; a type of the same name carries its entry.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Expr, ExprLit, FnArg, ItemFn, Lit, LitStr, MetaNameValue, Result, Type, parse2, spanned::Spanned};

use crate::{names, procedure};

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = parse2(item)?;
    let migration = migration_name(options, &function)?;
    check_signature(&function)?;
    let (ident, visibility) = (&function.sig.ident, &function.vis);
    let name = names::name_of(ident)?;
    let result = match procedure::returns_result(&function.sig.output) {
        true => quote!(#ident(__tx, __from_version)),
        false => quote!(::core::result::Result::Ok(#ident(__tx, __from_version))),
    };
    let about = format!("What runs when the module is deployed: `{name}::call` for tests.");
    Ok(quote! {
        #function

        #[allow(non_camel_case_types)]
        #[doc = #about]
        #visibility struct #ident {}

        #[cfg(not(target_arch = "wasm32"))]
        #[allow(dead_code)]
        impl #ident {
            /// Runs it on each partition of a test database, as a deployment over the rows of `from_version` would.
            #visibility fn call(
                __db: &mut ::reprise_procedure::testkit::TestDb,
                __from_version: u32,
            ) -> ::core::result::Result<(), ::reprise_procedure::testkit::TestError> {
                __db.deploy_over(__from_version)
            }
        }

        impl ::reprise_procedure::module::OnDeploy for #ident {
            const NAME: &'static str = #migration;

            fn run(
                __tx: &::reprise_procedure::txn::Txn<'_>,
                __args: &[u8],
            ) -> ::core::result::Result<(), ::reprise_procedure::module::Abort> {
                let mut __reader = ::reprise_procedure::module::ArgReader::new(__args);
                let __from_version: u32 = __reader.take();
                __reader.finish();
                #result
            }
        }
    })
}

/// `name = "split-name"`. There is no default: under the function's name a later migration would be taken for one that the tables have had.
fn migration_name(options: TokenStream, function: &ItemFn) -> Result<LitStr> {
    let refuse = |span| Error::new(span, "name the migration: `#[on_deploy(name = \"split-name\")]`");
    if options.is_empty() {
        return Err(refuse(function.sig.ident.span()));
    }
    let option: MetaNameValue = parse2(options)?;
    let Expr::Lit(ExprLit {
        lit: Lit::Str(name), ..
    }) = &option.value
    else {
        return Err(refuse(option.span()));
    };
    if !option.path.is_ident("name") {
        return Err(refuse(option.span()));
    }
    names::checked(name.value().replace('-', "_"), name.span()).map_err(|_| {
        let message = format!(
            "{:?} is not a valid name: it must match [a-z][a-z0-9_-]{{0,62}}",
            name.value()
        );
        Error::new(name.span(), message)
    })?;
    Ok(name.clone())
}

fn check_signature(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    let mut inputs = signature.inputs.iter();
    let takes_txn = matches!(inputs.next(), Some(FnArg::Typed(first)) if matches!(*first.ty, Type::Reference(_)));
    let takes_version = matches!(inputs.next(), Some(FnArg::Typed(second)) if is_u32(&second.ty));
    let is_plain = signature.asyncness.is_none() && signature.generics.params.is_empty();
    match takes_txn && takes_version && is_plain && inputs.next().is_none() {
        true => Ok(()),
        false => Err(Error::new(
            signature.ident.span(),
            "what runs at a deployment is `fn NAME(tx: &Txn, from_version: u32)`, with or without a result `Result<(), Abort>`",
        )),
    }
}

fn is_u32(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident("u32"))
}
