//! Sockets of transports over TCP: one that listens, one that connects, and a thread for each peer that must be greeted.

use std::{
    collections::BTreeMap,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};

use crate::{
    net::{Connection, Listener, NetError},
    socket::{OpenSocket, OpenSockets},
};

/// Interval at which a listener checks whether it was dropped.
pub(crate) const ACCEPT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Accepted connections that the owner of the listener has not taken, at most.
const ACCEPTED_MAX: usize = 16;
/// Greetings under way at most: beyond them the oldest gives way to a new one.
const GREETINGS_MAX: usize = 32;

/// Closes a listener when it is dropped.
struct OpenTcpListener(Arc<AtomicBool>);

impl Drop for OpenTcpListener {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Binds a socket that accepts without waiting.
pub fn bind_tcp(address: &str) -> Result<TcpListener, NetError> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to the first of the addresses of `address` that answers, each within `time`.
pub fn connect_tcp(address: &str, time: Duration) -> Result<(TcpStream, SocketAddr), NetError> {
    let unreachable = |reason: String| NetError::Unreachable(format!("{address}: {reason}"));
    let addresses = address
        .to_socket_addrs()
        .map_err(|error| unreachable(error.to_string()))?;
    let mut last = unreachable("no such name".into());
    for address in addresses {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => last = unreachable(error.to_string()),
        }
    }
    Err(last)
}

/// Runs `accept` on a thread, with the mark that is set once the listener is dropped.
pub(crate) fn accept_on(
    listener: TcpListener,
    thread_name: &str,
    accept: impl FnOnce(&TcpListener, &Sender<Connection>, &AtomicBool) + Send + 'static,
) -> Result<Listener, NetError> {
    let address = listener.local_addr()?.to_string();
    let (sender, accepted) = bounded(ACCEPTED_MAX);
    let is_closed = Arc::new(AtomicBool::new(false));
    let open = OpenTcpListener(is_closed.clone());
    let accept = move || accept(&listener, &sender, &is_closed);
    thread::Builder::new().name(thread_name.into()).spawn(accept)?;
    Ok(Listener::new(address, accepted, Box::new(open)))
}

/// Greets each peer of `listener` on a thread of its own. The threads are called `{name}-accept` and `{name}-greet`.
pub fn greet_on<F>(listener: TcpListener, name: &'static str, greet: F) -> Result<Listener, NetError>
where
    F: Fn(TcpStream, SocketAddr, OpenSocket) -> Result<Connection, NetError> + Send + Sync + 'static,
{
    accept_on(
        listener,
        &format!("{name}-accept"),
        move |listener, sender, is_closed| {
            greet_all(listener, is_closed, name, sender, &Arc::new(greet));
        },
    )
}

/// Sockets of peers that are being greeted, by number: the lowest is the oldest.
#[derive(Default)]
struct Greetings(Mutex<BTreeMap<u64, TcpStream>>);

impl Greetings {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Counts one more. The oldest socket is shut down if there are too many, which ends its greeting.
    fn begin(&self, number: u64, socket: TcpStream) {
        let mut sockets = self.lock();
        if sockets.len() >= GREETINGS_MAX
            && let Some((_, oldest)) = sockets.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both); // an error means that the peer has ended it already
        }
        sockets.insert(number, socket);
    }

    fn end(&self, number: u64) {
        self.lock().remove(&number);
    }
}

fn greet_all<F>(listener: &TcpListener, is_closed: &AtomicBool, name: &str, sender: &Sender<Connection>, greet: &Arc<F>)
where
    F: Fn(TcpStream, SocketAddr, OpenSocket) -> Result<Connection, NetError> + Send + Sync + 'static,
{
    let (open, greetings) = (OpenSockets::default(), Arc::new(Greetings::default()));
    for number in 0.. {
        if is_closed.load(Ordering::Acquire) {
            return;
        }
        // Further peers wait in the kernel, as they do without a greeting.
        let Some(counted) = open.take() else {
            thread::sleep(ACCEPT_POLL_INTERVAL);
            continue;
        };
        let Ok((stream, peer)) = listener.accept() else {
            thread::sleep(ACCEPT_POLL_INTERVAL);
            continue;
        };
        let Ok(socket) = stream.try_clone() else {
            continue; // the drop ends the connection
        };
        greetings.begin(number, socket);
        let (greet, sender, under_way) = (greet.clone(), sender.clone(), greetings.clone());
        let take = move || {
            // One that can't be set up is gone; the peer notices.
            let connection = stream.set_nonblocking(false).map_err(NetError::from);
            let connection = connection.and_then(|()| greet(stream, peer, counted));
            under_way.end(number);
            if let Ok(connection) = connection {
                let _ = sender.send(connection); // the listener may be gone
            }
        };
        // Without a thread the connection ends, and the peer notices.
        let thread = thread::Builder::new().name(format!("{name}-greet"));
        if thread.spawn(take).is_err() {
            greetings.end(number);
        }
    }
}
