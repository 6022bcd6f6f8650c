//! Queue pairs of real cards. The `ibverbs` crate sends and receives; writes, completion channels and memory of our own go through its
//! `ffi`.
#![allow(unsafe_code)]

use std::{
    any::Any,
    ffi::CStr,
    io,
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ibverbs_sys as ffi;
use reprise_env::FrameMemory;

use crate::{
    cards::{OpenCard, OwnedPointer, Port, failed, failed_with, give_back},
    net::first_packet,
    verbs::{Ask, Completion, CompletionQueue, MemorySpan, PairAddress, QueuePair, RemoteMemory, VerbsError, Write},
};

/// A write that is not acknowledged is sent again so often: 7 would be for ever on soft-RoCE.
const RETRIES: u8 = 6;
/// Between two tries: 4.096 us * 2^14, which is 67 ms.
const TIMEOUT: u8 = 14;
/// How long a peer without a receive asks to wait: 0.64 ms.
const NO_RECEIVE_WAIT: u8 = 12;
const HOPS_MAX: u8 = 64;
const PAGE_BYTES: usize = 4096;

give_back! {
    free_domain: ibv_dealloc_pd(ibv_pd);
    free_memory: ibv_dereg_mr(ibv_mr);
    free_channel: ibv_destroy_comp_channel(ibv_comp_channel);
    free_queue: ibv_destroy_cq(ibv_cq);
    free_pair: ibv_destroy_qp(ibv_qp);
}

/// Pages of this process, unmapped when they are dropped.
struct MappedPages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is reached through raw pointers alone, by the methods below.
unsafe impl Send for MappedPages {}
// SAFETY: no two threads `put` the same bytes at once, as its callers see to; `get` copies what the card may write.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// Makes at least this many bytes, all 0. A child of this process does not inherit them: they stay at the address that the card knows.
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

    fn check(&self, at: usize, bytes: usize) {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {at} of {} of registered memory", self.bytes);
    }

    /// Two threads must not write the same bytes at once.
    fn put(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: in bounds, as was checked; the card reads it, no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        // SAFETY: in bounds, as was checked; what a peer writes meanwhile makes other bytes, of which any are good.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn word(&self, at: usize) -> u64 {
        self.check(at, 8);
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8");
        // SAFETY: in bounds and aligned; a card writes such a word at once.
        u64::from_le(unsafe { ptr::read_volatile(self.start.as_ptr().add(at).cast()) })
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: a whole mapping of `new`, which no code uses any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that pairs send from, each with a registration of its own: no pair can send from another's memory.
pub(crate) struct RealMemory(Arc<MappedPages>);

impl RealMemory {
    pub fn new(bytes: usize) -> Result<Self, VerbsError> {
        Ok(Self(Arc::new(MappedPages::new(bytes)?)))
    }
}

impl FrameMemory for RealMemory {
    fn bytes(&self) -> usize {
        self.0.bytes
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.0.put(at, bytes);
    }
}

/// Memory that the card knows. The card forgets it before it is unmapped: the order of the fields.
struct RegisteredMemory {
    region: OwnedPointer<ffi::ibv_mr>,
    pages: Arc<MappedPages>,
}

impl RegisteredMemory {
    fn new(
        domain: &OwnedPointer<ffi::ibv_pd>,
        pages: Arc<MappedPages>,
        access: ffi::ibv_access_flags,
    ) -> Result<Self, VerbsError> {
        let start = pages.start.as_ptr().cast();
        // SAFETY: the domain lives, the memory is mapped for as long as the region does.
        let region = unsafe { ffi::ibv_reg_mr(domain.get(), start, pages.bytes, access.0 as i32) };
        let region = OwnedPointer::new("register memory", region, free_memory)?;
        Ok(Self { region, pages })
    }

    /// Returns these bytes as the card reads them.
    fn piece(&self, span: MemorySpan) -> ffi::ibv_sge {
        self.pages.check(span.at, span.bytes);
        ffi::ibv_sge {
            addr: self.address() + span.at as u64,
            length: u32::try_from(span.bytes).expect("a ring is shorter"),
            lkey: self.keys().0,
        }
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives; its keys do not change.
        unsafe { ((*self.region.get()).lkey, (*self.region.get()).rkey) }
    }

    fn address(&self) -> u64 {
        self.pages.start.as_ptr() as u64
    }
}

/// Fields are given back in their order: the pair before its queues, these before their channel, all before the card.
pub(crate) struct RealPair {
    pair: OwnedPointer<ffi::ibv_qp>,
    sent: OwnedPointer<ffi::ibv_cq>,
    received: OwnedPointer<ffi::ibv_cq>,
    channel: OwnedPointer<ffi::ibv_comp_channel>,
    outbound: Option<RegisteredMemory>,
    attached: OnceLock<RegisteredMemory>,
    inbound: RegisteredMemory,
    domain: OwnedPointer<ffi::ibv_pd>,
    card: Arc<OpenCard>,
    port: Port,
    first_packet: u32,
}

impl RealPair {
    pub fn new(card: Arc<OpenCard>, port: Port, ask: &Ask) -> Result<Self, VerbsError> {
        let context = card.context.get();
        // SAFETY: the card is open.
        let domain = OwnedPointer::new(
            "make a protection domain",
            unsafe { ffi::ibv_alloc_pd(context) },
            free_domain,
        )?;
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let inbound = RegisteredMemory::new(&domain, Arc::new(MappedPages::new(ask.inbound_bytes)?), access)?;
        // SAFETY: the card is open.
        let channel = OwnedPointer::new(
            "make a completion channel",
            unsafe { ffi::ibv_create_comp_channel(context) },
            free_channel,
        )?;
        set_nonblocking(&channel)?;
        let queue = |entries: u32, channel: *mut ffi::ibv_comp_channel| {
            // SAFETY: the card is open; the channel is of this card, or none.
            let queue = unsafe { ffi::ibv_create_cq(context, entries as i32, ptr::null_mut(), channel, 0) };
            OwnedPointer::new("make a completion queue", queue, free_queue)
        };
        let sent = queue(ask.writes + 1, ptr::null_mut())?;
        let received = queue(ask.receives + 1, channel.get())?;
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: sent.get(),
            recv_cq: received.get(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: ask.writes,
                max_recv_wr: ask.receives,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            ..ffi::ibv_qp_init_attr::default()
        };
        // SAFETY: domain and queues live, and are of the same card.
        let pair = unsafe { ffi::ibv_create_qp(domain.get(), &raw mut init) };
        let own = Self {
            pair: OwnedPointer::new("make a queue pair", pair, free_pair)?,
            sent,
            received,
            channel,
            outbound: None,
            attached: OnceLock::new(),
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

fn set_nonblocking(channel: &OwnedPointer<ffi::ibv_comp_channel>) -> Result<(), VerbsError> {
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

impl QueuePair for RealPair {
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

    fn inbound(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.inbound.address(),
            key: self.inbound.keys().1,
        }
    }

    fn connect(&mut self, peer: &PairAddress, outbound_bytes: usize) -> Result<(), VerbsError> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        self.outbound = Some(RegisteredMemory::new(
            &self.domain,
            Arc::new(MappedPages::new(outbound_bytes)?),
            access,
        )?);
        self.make_ready_to_receive(peer)?;
        self.make_ready_to_send()
    }

    fn attach(&self, memory: &Arc<dyn FrameMemory>) -> Result<(), VerbsError> {
        let foreign = || VerbsError::Failed {
            what: "register memory",
            reason: "it is not of a card".into(),
        };
        let memory = &**memory as &dyn Any;
        let memory = memory.downcast_ref::<RealMemory>().ok_or_else(foreign)?;
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let registered = RegisteredMemory::new(&self.domain, memory.0.clone(), access)?;
        self.attached.set(registered).map_err(|_| VerbsError::Failed {
            what: "register memory",
            reason: "this connection has shared memory already".into(),
        })
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.outbound.as_ref().expect("it is connected").pages.put(at, bytes);
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        self.inbound.pages.get(at, bytes);
    }

    fn word(&self, at: usize) -> u64 {
        self.inbound.pages.word(at)
    }

    fn post_write(&self, write: &Write) -> Result<(), VerbsError> {
        let mut pieces = [ffi::ibv_sge::default(); 2];
        let mut count = 0;
        for (memory, span) in [(self.outbound.as_ref(), write.own), (self.attached.get(), write.shared)] {
            if span.bytes > 0 {
                pieces[count] = memory.expect("it was registered before").piece(span);
                count += 1;
            }
        }
        let mut request = ffi::ibv_send_wr {
            wr_id: write.number,
            sg_list: pieces.as_mut_ptr(),
            num_sge: count as i32,
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
        // SAFETY: the pair lives; the request and its pieces outlive the call, which copies them; the memory is registered and lives.
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

    fn poll(&self, queue: CompletionQueue, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = match queue {
            CompletionQueue::Sent => &self.sent,
            CompletionQueue::Received => &self.received,
        };
        let mut found = [ffi::ibv_wc::default(); 16];
        let most = found.len().min(completions.len());
        let poll = self.ops().poll_cq.expect("every card has it");
        // SAFETY: the queue lives; there is room for as many.
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
