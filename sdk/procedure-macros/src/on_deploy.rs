//! `#[on_deploy]`: the function stays as it is; a type of the same name carries its entry.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, FnArg, ItemFn, Result, Type, parse2, spanned::Spanned};

use crate::{names, procedure};

pub fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new(options.span(), "`#[on_deploy]` has no options"));
    }
    let function: ItemFn = parse2(item)?;
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
