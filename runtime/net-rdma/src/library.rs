//! rdma-core's library, loaded at run time: a machine without it runs everything else.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use ibverbs_sys as ffi;
use libloading::Library;

use crate::verbs::VerbsError;

/// The library's name on Linux. Its number is the version of its interface.
const LIBRARY: &str = "libibverbs.so.1";

static FUNCTIONS: OnceLock<Result<Functions, VerbsError>> = OnceLock::new();

/// Loads the library. Each function below needs it: call this before any other verb.
pub(crate) fn load() -> Result<(), VerbsError> {
    let loaded = FUNCTIONS.get_or_init(|| {
        Functions::load().map_err(|error| VerbsError::NoLibrary {
            reason: error.to_string(),
        })
    });
    loaded.as_ref().map(drop).map_err(Clone::clone)
}

/// Defines the functions that `ibverbs-sys` declares. Each calls the library's function of the same name, in its default version.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
            /// The loaded library. While it lives, the functions stay loaded.
            _library: Library,
        }

        impl Functions {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the library's initialisation reads the environment, and nothing else.
                let library = unsafe { Library::new(LIBRARY) }?;
                Ok(Self {
                    // SAFETY: the types are those of verbs.h, whose version the library's name fixes; the library is kept beside them.
                    $($name: unsafe { *library.get(stringify!($name).as_bytes())? },)*
                    _library: library,
                })
            }
        }

        $(
            const _: unsafe extern "C" fn($($kind),*) $(-> $result)? = ffi::$name;

            /// # Safety
            /// The contract of the verb of this name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                let loaded = FUNCTIONS.get().and_then(|loaded| loaded.as_ref().ok());
                let functions = loaded.expect("cards are listed first, which loads the library");
                // SAFETY: the caller's contract.
                unsafe { (functions.$name)($($argument),*) }
            }
        )*
    };
}

functions! {
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device;
    ibv_free_device_list(list: *mut *mut ffi::ibv_device);
    ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char;
    ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context;
    ibv_close_device(context: *mut ffi::ibv_context) -> c_int;
    ibv_query_device(context: *mut ffi::ibv_context, attributes: *mut ffi::ibv_device_attr) -> c_int;
    ibv_query_port(context: *mut ffi::ibv_context, port: u8, attributes: *mut ffi::_compat_ibv_port_attr) -> c_int;
    _ibv_query_gid_ex(
        context: *mut ffi::ibv_context,
        port: u32,
        index: u32,
        entry: *mut ffi::ibv_gid_entry,
        flags: u32,
        bytes: usize
    ) -> c_int;
    ibv_alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd;
    ibv_dealloc_pd(domain: *mut ffi::ibv_pd) -> c_int;
    ibv_reg_mr(domain: *mut ffi::ibv_pd, start: *mut c_void, bytes: usize, access: c_int) -> *mut ffi::ibv_mr;
    ibv_dereg_mr(region: *mut ffi::ibv_mr) -> c_int;
    ibv_create_comp_channel(context: *mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int;
    ibv_create_cq(
        context: *mut ffi::ibv_context,
        entries: c_int,
        data: *mut c_void,
        channel: *mut ffi::ibv_comp_channel,
        vector: c_int
    ) -> *mut ffi::ibv_cq;
    ibv_destroy_cq(queue: *mut ffi::ibv_cq) -> c_int;
    ibv_get_cq_event(
        channel: *mut ffi::ibv_comp_channel,
        queue: *mut *mut ffi::ibv_cq,
        data: *mut *mut c_void
    ) -> c_int;
    ibv_ack_cq_events(queue: *mut ffi::ibv_cq, count: c_uint);
    ibv_create_qp(domain: *mut ffi::ibv_pd, attributes: *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
    ibv_modify_qp(pair: *mut ffi::ibv_qp, attributes: *mut ffi::ibv_qp_attr, mask: c_int) -> c_int;
    ibv_destroy_qp(pair: *mut ffi::ibv_qp) -> c_int;
    ibv_wc_status_str(status: ffi::ibv_wc_status::Type) -> *const c_char;
}
