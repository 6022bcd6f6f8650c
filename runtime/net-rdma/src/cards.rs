//! Cards of this machine, through rdma-core: which there are, and which of their ports has the address of a connection.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    fs, io,
    net::{IpAddr, Ipv4Addr},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use ibverbs_sys as ffi;
use reprise_env::FrameMemory;

use crate::{
    library,
    real::{RealMemory, RealPair},
    verbs::{Ask, Card, CardSeen, QueuePair, VerbsError},
};

pub(crate) fn failed(what: &'static str) -> VerbsError {
    let error = io::Error::last_os_error();
    failed_with(what, &error)
}

pub(crate) fn failed_with(what: &'static str, error: &io::Error) -> VerbsError {
    let mut reason = error.to_string();
    if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) && what == "register memory" {
        reason.push_str("; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)");
    }
    if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
        reason.push_str("; this user may not use /dev/infiniband");
    }
    VerbsError::Failed { what, reason }
}

/// A pointer of rdma-core that is given back once.
pub(crate) struct OwnedPointer<T> {
    pointer: NonNull<T>,
    give_back: unsafe fn(*mut T),
}

impl<T> OwnedPointer<T> {
    pub fn new(what: &'static str, pointer: *mut T, give_back: unsafe fn(*mut T)) -> Result<Self, VerbsError> {
        let pointer = NonNull::new(pointer).ok_or_else(|| failed(what))?;
        Ok(Self { pointer, give_back })
    }

    pub fn get(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for OwnedPointer<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rdma-core, is not null, and is given back here alone.
        unsafe { (self.give_back)(self.pointer.as_ptr()) };
    }
}

// SAFETY: rdma-core's objects may be used from any thread, by several at once (ibverbs(7): the library is thread safe).
unsafe impl<T> Send for OwnedPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for OwnedPointer<T> {}

/// Defines what gives back a pointer: the verbs' answer says that something is left, which a field order of ours rules out.
macro_rules! give_back {
    ($($name:ident: $verb:ident($type:ident);)*) => {$(
        /// # Safety
        /// The pointer came from the verb that makes it, and nothing that was made of it is left.
        unsafe fn $name(pointer: *mut ffi::$type) {
            // SAFETY: the caller's contract.
            unsafe { ffi::$verb(pointer) };
        }
    )*};
}
pub(crate) use give_back;

give_back! {
    close_card: ibv_close_device(ibv_context);
}

/// An address of a card's port.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    pub number: u8,
    pub lid: u16,
    /// The MTU in force.
    pub mtu: u8,
    is_ethernet: bool,
    is_roce_v2: bool,
    pub gid: [u8; 16],
    pub gid_index: u8,
}

impl Port {
    fn address(&self) -> Option<IpAddr> {
        let address = std::net::Ipv6Addr::from(self.gid);
        (!address.is_unspecified()).then(|| match address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(address),
        })
    }

    fn link_layer(&self) -> &'static str {
        match (self.is_ethernet, self.is_roce_v2) {
            (true, true) => "Ethernet (RoCE v2)",
            (true, false) => "Ethernet (RoCE v1)",
            (false, _) => "InfiniBand",
        }
    }

    /// Describes the card, for people.
    fn describe(&self) -> String {
        let address = self.address().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (number, index, mtu, link) = (self.number, self.gid_index, 128 << self.mtu, self.link_layer());
        format!("port {number}, GID {index} ({address}), MTU {mtu}, {link}")
    }
}

pub(crate) struct OpenCard {
    name: String,
    pub context: OwnedPointer<ffi::ibv_context>,
}

/// Cards of this machine: the one that has this end's address, or the one that was named.
pub struct RealCard {
    named: Option<String>,
    gid_index: Option<u8>,
    open: Mutex<Option<Arc<OpenCard>>>,
}

impl RealCard {
    /// `named`: a card's name, or name and index of its GID (`rxe0`, `mlx5_0:3`); none: the card that has the address of a connection.
    pub fn new(named: Option<&str>) -> Result<Self, VerbsError> {
        let (named, gid_index) = match named.map(|named| named.split_once(':').unwrap_or((named, ""))) {
            None => (None, None),
            Some((name, "")) => (Some(name.to_owned()), None),
            Some((name, index)) => {
                let read = index.parse::<u8>().map_err(|_| VerbsError::Failed {
                    what: "choose a card",
                    reason: format!("{index:?} is no index of a GID; write NAME or NAME:INDEX"),
                })?;
                (Some(name.to_owned()), Some(read))
            }
        };
        Ok(Self {
            named,
            gid_index,
            open: Mutex::default(),
        })
    }

    /// The card and the port for connections of this end. All addresses: the first one that is up.
    fn choose(&self, local: IpAddr) -> Result<(Arc<OpenCard>, Port), VerbsError> {
        let mut kept = self.open.lock().expect("nothing panics under this lock");
        if let Some(card) = &*kept
            && let Some(port) = self.port_of(card, local)?
        {
            return Ok((card.clone(), port));
        }
        let names = card_names()?;
        let mut reason = match names.is_empty() {
            true => "there is no RDMA card on this machine".to_owned(),
            false => format!(
                "no RDMA card has the address {local} (there are {}); name one",
                names.join(", ")
            ),
        };
        for name in &names {
            if self.named.as_ref().is_some_and(|named| named != name) {
                continue;
            }
            let card = Arc::new(open_card(name)?);
            if let Some(port) = self.port_of(&card, local)? {
                *kept = Some(card.clone());
                return Ok((card, port));
            }
            if self.named.is_some() {
                reason = format!("the RDMA card {name} has no port that is up, or not the GID that is named");
            }
        }
        let is_other = |named: &&String| !names.is_empty() && !names.contains(named);
        if let Some(named) = self.named.as_ref().filter(is_other) {
            reason = format!("there is no RDMA card {named} on this machine ({})", names.join(", "));
        }
        Err(VerbsError::NoDevice(reason))
    }

    /// The address of a card that has `local`, or of a named card the one that is named, or its first of IPv4.
    fn port_of(&self, card: &OpenCard, local: IpAddr) -> Result<Option<Port>, VerbsError> {
        let ports = card.ports()?;
        let has = |port: &&Port| match self.gid_index {
            Some(index) => port.gid_index == index,
            None => port.address() == Some(local),
        };
        let any = |port: &&Port| port.address().is_some_and(|address| address.is_ipv4()) || !port.is_ethernet;
        let is_free = self.gid_index.is_none() && (self.named.is_some() || local.is_unspecified());
        let found = ports.iter().find(has);
        Ok(found.or_else(|| ports.iter().find(any).filter(|_| is_free)).copied())
    }
}

fn card_names() -> Result<Vec<String>, VerbsError> {
    library::load()?;
    let list = ibverbs::devices().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => VerbsError::NoDevice("this kernel has no RDMA (modules ib_uverbs, rdma_ucm)".into()),
        _ => failed_with("list the RDMA cards", &error),
    })?;
    let names = list.iter().filter_map(|card| card.name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let known = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut known = known.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match known.next() {
        Some(card) if names.is_empty() => Err(VerbsError::NoDevice(format!(
            "rdma-core has no driver for the RDMA card {card} (Debian: ibverbs-providers), or may not see it"
        ))),
        _ => Ok(names),
    }
}

/// Turns the error into one about rights. rdma-core reports a missing file if this user may not open a card's device.
fn explain_rights(error: VerbsError) -> VerbsError {
    let devices = fs::read_dir("/dev/infiniband").into_iter().flatten().flatten();
    let mut cards = devices.filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"));
    let is_refused = |entry: fs::DirEntry| {
        let opened = fs::OpenOptions::new().read(true).write(true).open(entry.path());
        opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    match cards.any(is_refused) {
        true => VerbsError::Failed {
            what: "open the RDMA card",
            reason: "this user may not use /dev/infiniband".into(),
        },
        false => error,
    }
}

fn open_card(name: &str) -> Result<OpenCard, VerbsError> {
    let mut count = 0;
    // SAFETY: the count outlives the call; the list is freed below.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(failed("list the RDMA cards"));
    }
    let mut opened = Err(VerbsError::NoDevice(format!("the RDMA card {name} is gone")));
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` pointers, each to a card until it is freed; a card's name ends with 0.
        let (card, found) = unsafe {
            let card = *list.add(at);
            (card, CStr::from_ptr(ffi::ibv_get_device_name(card)))
        };
        if found.to_bytes() == name.as_bytes() {
            // SAFETY: the card is one of the list.
            let context = unsafe { ffi::ibv_open_device(card) };
            let context = OwnedPointer::new("open the RDMA card", context, close_card).map_err(explain_rights);
            opened = context.map(|context| OpenCard {
                name: name.to_owned(),
                context,
            });
            break;
        }
    }
    // SAFETY: it came from the call above; an open card does not need it.
    unsafe { ffi::ibv_free_device_list(list) };
    opened
}

impl OpenCard {
    /// Addresses of all ports that are up; RoCE v2's before others of the same address.
    fn ports(&self) -> Result<Vec<Port>, VerbsError> {
        let context = self.context.get();
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the card is open; the attributes outlive the call.
        let done = unsafe { ffi::ibv_query_device(context, &raw mut attributes) };
        if done != 0 {
            return Err(failed_with("ask the RDMA card", &io::Error::from_raw_os_error(done)));
        }
        let mut found = Vec::new();
        for number in 1..=attributes.phys_port_cnt {
            let mut port = ffi::ibv_port_attr::default();
            // SAFETY: as above. The verb writes the fields of its first version, which stand first and were 0.
            let done = unsafe { ffi::ibv_query_port(context, number, (&raw mut port).cast()) };
            if done != 0 || port.state != ffi::ibv_port_state::IBV_PORT_ACTIVE {
                continue;
            }
            let indexes = u8::try_from(port.gid_tbl_len).unwrap_or(u8::MAX);
            found.extend((0..indexes).filter_map(|index| self.port(number, &port, index)));
        }
        found.sort_by_key(|port| !port.is_roce_v2);
        Ok(found)
    }

    fn port(&self, number: u8, port: &ffi::ibv_port_attr, index: u8) -> Option<Port> {
        let mut entry = ffi::ibv_gid_entry::default();
        let bytes = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: the card is open, the entry outlives the call and has that many bytes.
        let done = unsafe {
            ffi::_ibv_query_gid_ex(
                self.context.get(),
                u32::from(number),
                u32::from(index),
                &raw mut entry,
                0,
                bytes,
            )
        };
        // SAFETY: both sides of the union are 16 plain bytes.
        let gid = unsafe { entry.gid.raw };
        (done == 0 && gid != [0; 16]).then(|| Port {
            number,
            lid: port.lid,
            mtu: port.active_mtu as u8,
            is_ethernet: u32::from(port.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET,
            is_roce_v2: entry.gid_type == ffi::IBV_GID_TYPE_ROCE_V2,
            gid,
            gid_index: index,
        })
    }
}

impl Card for RealCard {
    fn describe(&self, local: IpAddr) -> Result<String, VerbsError> {
        let (card, port) = self.choose(local)?;
        Ok(format!("{} {}", card.name, port.describe()))
    }

    fn pair(&self, ask: &Ask) -> Result<Box<dyn QueuePair>, VerbsError> {
        let (card, port) = self.choose(ask.local)?;
        Ok(Box::new(RealPair::new(card, port, ask)?))
    }

    fn memory(&self, bytes: usize) -> Result<Arc<dyn FrameMemory>, VerbsError> {
        Ok(Arc::new(RealMemory::new(bytes)?))
    }
}

/// Each card of this machine, with a line for each address of its ports that are up.
pub fn cards_seen() -> Result<Vec<CardSeen>, VerbsError> {
    let seen = |name: String| {
        let ports = open_card(&name).and_then(|card| card.ports());
        let ports = ports.map(|ports| ports.iter().map(Port::describe).collect());
        CardSeen { name, ports }
    };
    Ok(card_names()?.into_iter().map(seen).collect())
}
