//! Cards of this machine, through rdma-core. The `ibverbs` crate sends and receives; writes, completion channels and memory of our own
//! go through its `ffi`.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr},
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ibverbs_sys as ffi;

use crate::{
    net::first_packet,
    verbs::{Ask, Card, Completion, Memory, Pair, PairAddress, Queue, VerbsError, Write},
};

/// A write that is not acknowledged is sent again so often: 7 would be for ever on soft-RoCE.
const RETRIES: u8 = 6;
/// Between two tries: 4.096 us * 2^14, which is 67 ms.
const TIMEOUT: u8 = 14;
/// How long a peer without a receive asks to wait: 0.64 ms.
const NO_RECEIVE_WAIT: u8 = 12;
const HOPS_MAX: u8 = 64;
const PAGE_BYTES: usize = 4096;

/// Queue pairs, completion queues, channels, memories and open cards that were not given back.
static RESOURCES: AtomicUsize = AtomicUsize::new(0);

/// What this process has of its cards: 0 once all connections are over.
pub fn open_resources() -> usize {
    RESOURCES.load(Ordering::Acquire)
}

fn failed(what: &'static str) -> VerbsError {
    let error = io::Error::last_os_error();
    failed_with(what, &error)
}

fn failed_with(what: &'static str, error: &io::Error) -> VerbsError {
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
struct Owned<T> {
    pointer: NonNull<T>,
    give_back: unsafe fn(*mut T),
}

impl<T> Owned<T> {
    fn new(what: &'static str, pointer: *mut T, give_back: unsafe fn(*mut T)) -> Result<Self, VerbsError> {
        let pointer = NonNull::new(pointer).ok_or_else(|| failed(what))?;
        RESOURCES.fetch_add(1, Ordering::AcqRel);
        Ok(Self { pointer, give_back })
    }

    fn get(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rdma-core, is not null, and is given back here alone.
        unsafe { (self.give_back)(self.pointer.as_ptr()) };
        RESOURCES.fetch_sub(1, Ordering::AcqRel);
    }
}

// SAFETY: rdma-core's objects may be used from any thread, by several at once (ibverbs(7): the library is thread safe).
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

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

give_back! {
    close_card: ibv_close_device(ibv_context);
    freedomain: ibv_dealloc_pd(ibv_pd);
    free_memory: ibv_dereg_mr(ibv_mr);
    free_channel: ibv_destroy_comp_channel(ibv_comp_channel);
    free_queue: ibv_destroy_cq(ibv_cq);
    free_pair: ibv_destroy_qp(ibv_qp);
}

/// An address of a card's port.
#[derive(Clone, Copy)]
struct Port {
    number: u8,
    lid: u16,
    /// In force.
    mtu: u8,
    is_ethernet: bool,
    gid: [u8; 16],
    gid_index: u8,
}

impl Port {
    fn address(&self) -> Option<IpAddr> {
        let address = std::net::Ipv6Addr::from(self.gid);
        (!address.is_unspecified()).then(|| match address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(address),
        })
    }
}

struct OpenCard {
    name: String,
    context: Owned<ffi::ibv_context>,
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
        if let Some(named) = self.named.as_ref().filter(|named| !names.contains(named)) {
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
    let list = ibverbs::devices().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => VerbsError::NoDevice("this kernel has no RDMA (modules ib_uverbs, rdma_ucm)".into()),
        _ => failed_with("list the RDMA cards", &error),
    })?;
    let names = list.iter().filter_map(|card| card.name());
    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
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
            opened = Owned::new("open the RDMA card", context, close_card).map(|context| OpenCard {
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
        found.sort_by_key(|(is_v2, _)| !is_v2);
        Ok(found.into_iter().map(|(_, port)| port).collect())
    }

    fn port(&self, number: u8, port: &ffi::ibv_port_attr, index: u8) -> Option<(bool, Port)> {
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
        (done == 0 && gid != [0; 16]).then(|| {
            let port = Port {
                number,
                lid: port.lid,
                mtu: port.active_mtu as u8,
                is_ethernet: u32::from(port.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET,
                gid,
                gid_index: index,
            };
            (entry.gid_type == ffi::IBV_GID_TYPE_ROCE_V2, port)
        })
    }
}

impl Card for RealCard {
    fn describe(&self, local: IpAddr) -> Result<String, VerbsError> {
        let (card, port) = self.choose(local)?;
        let address = port.address().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (name, number, index) = (&card.name, port.number, port.gid_index);
        let mtu = 128 << port.mtu;
        Ok(format!("{name} port {number}, GID {index} ({address}), MTU {mtu}"))
    }

    fn pair(&self, ask: &Ask) -> Result<Box<dyn Pair>, VerbsError> {
        let (card, port) = self.choose(ask.local)?;
        Ok(Box::new(RealPair::new(card, port, ask)?))
    }
}

/// Pages of this process, unmapped when they are dropped.
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is reached through raw pointers alone, by the methods of `Registered`.
unsafe impl Send for Pages {}
// SAFETY: `put` is called under a lock, `get` copies what the card may write.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least so many bytes, all 0. A child of this process does not get them: they stay where the card knows them.
    fn new(bytes: usize) -> Result<Self, VerbsError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, of no file, at no chosen place.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        let mapped = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        let pages = Self {
            start: mapped.ok_or_else(|| failed("get memory"))?,
            bytes,
        };
        // SAFETY: the mapping above, whole.
        match unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) } {
            0 => Ok(pages),
            _ => Err(failed("keep memory from child processes")),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping of `new`, whole, that nobody uses any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that the card knows. The card forgets it before it is unmapped: the order of the fields.
struct Registered {
    region: Owned<ffi::ibv_mr>,
    pages: Pages,
}

impl Registered {
    fn new(domain: &Owned<ffi::ibv_pd>, bytes: usize, access: ffi::ibv_access_flags) -> Result<Self, VerbsError> {
        let pages = Pages::new(bytes)?;
        let start = pages.start.as_ptr().cast();
        // SAFETY: the domain lives, the memory is mapped for as long as the region does.
        let region = unsafe { ffi::ibv_reg_mr(domain.get(), start, pages.bytes, access.0 as i32) };
        let region = Owned::new("register memory", region, free_memory)?;
        Ok(Self { region, pages })
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives; its keys do not change.
        unsafe { ((*self.region.get()).lkey, (*self.region.get()).rkey) }
    }

    fn address(&self) -> u64 {
        self.pages.start.as_ptr() as u64
    }

    fn check(&self, at: usize, bytes: usize) {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.pages.bytes);
        assert!(
            fits,
            "{bytes} bytes at {at} of {} of registered memory",
            self.pages.bytes
        );
    }

    /// Not by two threads at once for the same bytes.
    fn put(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: in bounds, as was checked; the card reads it, no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.pages.start.as_ptr().add(at), bytes.len()) };
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        // SAFETY: in bounds, as was checked; what a peer writes meanwhile makes other bytes, of which any are good.
        unsafe { ptr::copy_nonoverlapping(self.pages.start.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn word(&self, at: usize) -> u64 {
        self.check(at, 8);
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8");
        // SAFETY: in bounds and aligned; a card writes such a word at once.
        u64::from_le(unsafe { ptr::read_volatile(self.pages.start.as_ptr().add(at).cast()) })
    }
}

/// Fields are given back in their order: the pair before its queues, these before their channel, all before the card.
struct RealPair {
    pair: Owned<ffi::ibv_qp>,
    sent: Owned<ffi::ibv_cq>,
    received: Owned<ffi::ibv_cq>,
    channel: Owned<ffi::ibv_comp_channel>,
    outbound: Mutex<Option<Registered>>,
    inbound: Registered,
    domain: Owned<ffi::ibv_pd>,
    card: Arc<OpenCard>,
    port: Port,
    first_packet: u32,
}

impl RealPair {
    fn new(card: Arc<OpenCard>, port: Port, ask: &Ask) -> Result<Self, VerbsError> {
        let context = card.context.get();
        // SAFETY: the card is open.
        let domain = Owned::new(
            "make a protection domain",
            unsafe { ffi::ibv_alloc_pd(context) },
            freedomain,
        )?;
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let inbound = Registered::new(&domain, ask.inbound_bytes, access)?;
        // SAFETY: the card is open.
        let channel = Owned::new(
            "make a completion channel",
            unsafe { ffi::ibv_create_comp_channel(context) },
            free_channel,
        )?;
        set_nonblocking(&channel)?;
        let queue = |entries: u32, channel: *mut ffi::ibv_comp_channel| {
            // SAFETY: the card is open; the channel is of this card, or none.
            let queue = unsafe { ffi::ibv_create_cq(context, entries as i32, ptr::null_mut(), channel, 0) };
            Owned::new("make a completion queue", queue, free_queue)
        };
        let sent = queue(ask.writes + 1, ptr::null_mut())?;
        let received = queue(ask.receives + 1, channel.get())?;
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: sent.get(),
            recv_cq: received.get(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: ask.writes,
                max_recv_wr: ask.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            ..ffi::ibv_qp_init_attr::default()
        };
        // SAFETY: domain and queues live, and are of the same card.
        let pair = unsafe { ffi::ibv_create_qp(domain.get(), &raw mut init) };
        let own = Self {
            pair: Owned::new("make a queue pair", pair, free_pair)?,
            sent,
            received,
            channel,
            outbound: Mutex::default(),
            inbound,
            domain,
            card,
            port,
            first_packet: first_packet()?,
        };
        own.initialise()?;
        Ok(own)
    }

    fn modify(
        &self,
        what: &'static str,
        attributes: &mut ffi::ibv_qp_attr,
        mask: ffi::ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let mask = mask | ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        // SAFETY: the pair lives; the attributes outlive the call.
        match unsafe { ffi::ibv_modify_qp(self.pair.get(), attributes, mask.0 as i32) } {
            0 => Ok(()),
            error => Err(failed_with(what, &io::Error::from_raw_os_error(error))),
        }
    }

    fn initialise(&self) -> Result<(), VerbsError> {
        use ffi::ibv_qp_attr_mask as Mask;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: self.port.number,
            qp_access_flags: ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            ..ffi::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify("initialise a queue pair", &mut attributes, mask)
    }

    fn make_ready_to_receive(&self, peer: &PairAddress) -> Result<(), VerbsError> {
        use ffi::ibv_qp_attr_mask as Mask;
        let route = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: peer.gid },
            sgid_index: self.port.gid_index,
            hop_limit: HOPS_MAX,
            ..ffi::ibv_global_route::default()
        };
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: u32::from(self.port.mtu.min(peer.mtu)),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NO_RECEIVE_WAIT,
            ah_attr: ffi::ibv_ah_attr {
                grh: route,
                dlid: peer.lid,
                is_global: 1,
                port_num: self.port.number,
                ..ffi::ibv_ah_attr::default()
            },
            ..ffi::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("connect a queue pair", &mut attributes, mask)
    }

    fn make_ready_to_send(&self) -> Result<(), VerbsError> {
        use ffi::ibv_qp_attr_mask as Mask;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.first_packet,
            max_rd_atomic: 1,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            ..ffi::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("have a queue pair send", &mut attributes, mask)
    }

    fn ops(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the card is open as long as this lives; its table of verbs does not change.
        unsafe { &(*self.card.context.get()).ops }
    }
}

fn set_nonblocking(channel: &Owned<ffi::ibv_comp_channel>) -> Result<(), VerbsError> {
    // SAFETY: the channel lives, and with it its descriptor.
    let done = unsafe {
        let descriptor = (*channel.get()).fd;
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    match done {
        -1 => Err(failed("set up a completion channel")),
        _ => Ok(()),
    }
}

/// An error number of a verb; 0 is none.
fn done(what: &'static str, error: i32) -> Result<(), VerbsError> {
    match error {
        0 => Ok(()),
        error => Err(failed_with(what, &io::Error::from_raw_os_error(error))),
    }
}

impl Pair for RealPair {
    fn address(&self) -> PairAddress {
        PairAddress {
            // SAFETY: the pair lives; its number does not change.
            queue_pair: unsafe { (*self.pair.get()).qp_num },
            first_packet: self.first_packet,
            lid: self.port.lid,
            mtu: self.port.mtu,
            gid: self.port.gid,
        }
    }

    fn inbound(&self) -> Memory {
        Memory {
            address: self.inbound.address(),
            key: self.inbound.keys().1,
        }
    }

    fn connect(&mut self, peer: &PairAddress, outbound_bytes: usize) -> Result<(), VerbsError> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let outbound = Registered::new(&self.domain, outbound_bytes, access)?;
        *self.outbound.get_mut().expect("nothing panics under this lock") = Some(outbound);
        self.make_ready_to_receive(peer)?;
        self.make_ready_to_send()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        let outbound = self.outbound.lock().expect("nothing panics under this lock");
        outbound.as_ref().expect("it is connected").put(at, bytes);
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        self.inbound.get(at, bytes);
    }

    fn word(&self, at: usize) -> u64 {
        self.inbound.word(at)
    }

    fn post_write(&self, write: &Write) -> Result<(), VerbsError> {
        let (address, key) = {
            let outbound = self.outbound.lock().expect("nothing panics under this lock");
            let outbound = outbound.as_ref().expect("it is connected");
            outbound.check(write.from, write.bytes);
            (outbound.address() + write.from as u64, outbound.keys().0)
        };
        let mut piece = ffi::ibv_sge {
            addr: address,
            length: u32::try_from(write.bytes).expect("a ring is shorter"),
            lkey: key,
        };
        let mut request = ffi::ibv_send_wr {
            wr_id: write.number,
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: match write.immediate {
                Some(_) => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                None => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            },
            ..ffi::ibv_send_wr::default()
        };
        if write.is_signalled {
            request.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        request.__bindgen_anon_1.imm_data = write.immediate.unwrap_or(0).to_be();
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: write.to.address,
            rkey: write.to.key,
        };
        let mut bad = ptr::null_mut();
        let post = self.ops().post_send.expect("every card has it");
        // SAFETY: the pair lives; the request and its piece outlive the call, which copies them; the memory is registered and lives.
        done("post a write", unsafe {
            post(self.pair.get(), &raw mut request, &raw mut bad)
        })
    }

    fn post_receive(&self) -> Result<(), VerbsError> {
        let mut request = ffi::ibv_recv_wr::default();
        let mut bad = ptr::null_mut();
        let post = self.ops().post_recv.expect("every card has it");
        // SAFETY: the pair lives; the request, which has no memory, outlives the call.
        done("post a receive", unsafe {
            post(self.pair.get(), &raw mut request, &raw mut bad)
        })
    }

    fn poll(&self, queue: Queue, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = match queue {
            Queue::Sent => &self.sent,
            Queue::Received => &self.received,
        };
        let mut found = [ffi::ibv_wc::default(); 16];
        let most = found.len().min(completions.len());
        let poll = self.ops().poll_cq.expect("every card has it");
        // SAFETY: the queue lives; there is room for so many.
        let count = unsafe { poll(queue.get(), most as i32, found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| failed("poll a completion queue"))?;
        for (place, found) in completions.iter_mut().zip(&found[..count]) {
            *place = Completion {
                number: found.wr_id(),
                immediate: found.imm_data().map(u32::from_be),
                failure: found.error().map(|(status, _)| status_text(status)),
            };
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        let arm = self.ops().req_notify_cq.expect("every card has it");
        // SAFETY: the queue lives.
        done("arm a completion queue", unsafe { arm(self.received.get(), 0) })
    }

    fn wait(&self, time: Duration) -> Result<(), VerbsError> {
        // SAFETY: the channel lives, and with it its descriptor.
        let fd = unsafe { (*self.channel.get()).fd };
        let mut polled = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let time = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one descriptor, which lives.
        unsafe { libc::poll(&raw mut polled, 1, time) };
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives and does not block; both places outlive the call.
        while unsafe { ffi::ibv_get_cq_event(self.channel.get(), &raw mut queue, &raw mut context) } == 0 {
            // A queue with an event that was not taken note of can't be given back.
            // SAFETY: the queue is the one of this channel.
            unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        }
        Ok(())
    }
}

fn status_text(status: ffi::ibv_wc_status::Type) -> &'static str {
    // SAFETY: the verb answers with a text of its own for each number, which lives for ever.
    let text = unsafe { CStr::from_ptr(ffi::ibv_wc_status_str(status)) };
    text.to_str().unwrap_or("an unknown error")
}
