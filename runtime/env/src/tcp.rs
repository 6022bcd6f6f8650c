//! Sockets of transports over TCP: one that listens, one that connects, and a thread for each peer that must be greeted.

use std::{
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};

use crate::{
    net::{Connection, Listener, NetError},
    socket::{OpenSocket, OpenSockets},
};

/// How often a listener looks whether it was dropped.
pub(crate) const ACCEPT_LOOK: Duration = Duration::from_millis(20);
/// Accepted connections that the owner of the listener has not taken, and greetings under way, at most.
const ACCEPTED_MAX: usize = 16;

/// Closes a listener when it is dropped.
struct OpenListener(Arc<AtomicBool>);

impl Drop for OpenListener {
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
    let open = OpenListener(is_closed.clone());
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

fn greet_all<F>(listener: &TcpListener, is_closed: &AtomicBool, name: &str, sender: &Sender<Connection>, greet: &Arc<F>)
where
    F: Fn(TcpStream, SocketAddr, OpenSocket) -> Result<Connection, NetError> + Send + Sync + 'static,
{
    let (open, under_way) = (OpenSockets::default(), Arc::new(AtomicUsize::new(0)));
    while !is_closed.load(Ordering::Acquire) {
        let Ok((stream, peer)) = listener.accept() else {
            thread::sleep(ACCEPT_LOOK);
            continue;
        };
        let Some(place) = open.take() else {
            thread::sleep(ACCEPT_LOOK);
            continue; // dropped, it ends
        };
        if under_way.fetch_add(1, Ordering::AcqRel) >= ACCEPTED_MAX {
            under_way.fetch_sub(1, Ordering::AcqRel);
            continue; // dropped, it ends
        }
        let (greet, sender, greetings) = (greet.clone(), sender.clone(), under_way.clone());
        let take = move || {
            // One that can't be set up is gone; the peer notices.
            let connection = stream.set_nonblocking(false).map_err(NetError::from);
            if let Ok(connection) = connection.and_then(|()| greet(stream, peer, place)) {
                let _ = sender.send(connection); // the listener may be gone
            }
            greetings.fetch_sub(1, Ordering::AcqRel);
        };
        // Without a thread it ends; the peer notices.
        if thread::Builder::new()
            .name(format!("{name}-greet"))
            .spawn(take)
            .is_err()
        {
            under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
