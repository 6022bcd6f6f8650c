//! `reprise build`: a procedure crate to wasm, with whichever toolchain is here.

use anyhow::anyhow;
use reprise_build::{BuildRequest, build};

use crate::{
    cli::{BuildArgs, Output},
    new::kit,
    output::{VerbFailure, VerbResult, print_json, print_note, print_text},
};

pub fn run(args: &BuildArgs, output: Output) -> VerbResult {
    if !args.dir.is_dir() {
        return Err(VerbFailure::Other(anyhow!("{} is not a folder", args.dir.display())));
    }
    match kit::read_kit(&args.dir)? {
        kit::KitState::Other if args.update_sdk => kit::put(&args.dir)?,
        kit::KitState::Other => print_note(&format!(
            "the SDK in {} has another version than this program; `reprise build --update-sdk` replaces it",
            args.dir.join(kit::FOLDER).display()
        )),
        kit::KitState::None | kit::KitState::Same => {}
    }
    let built = build(&BuildRequest::Crate(&args.dir), args.out.as_deref(), args.toolchain)?;
    for module in built {
        match output {
            Output::Json => print_json(&serde_json::json!({ "module": module.path, "bytes": module.bytes }))?,
            Output::Text => print_text(&format!(
                "{0} ({1} bytes)\n  reprise module deploy {0}",
                module.path.display(),
                module.bytes
            ))?,
        }
    }
    Ok(())
}
