//! A TCP proxy that breaks connections at a chosen moment.
//!
//! It has a runtime of its own, so bytes keep flowing while a test blocks its thread, for instance
//! by waiting for a program that talks through the proxy.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::messages::Messages;
use crate::port::{free_port, loopback};

const PORT_TRIES: usize = 10;
const CHUNK_BYTES: usize = 16 * 1024;

/// Longest pattern a trap may wait for; so many bytes are remembered from chunk to chunk.
const PATTERN_BYTES_MAX: usize = 1024;

/// How long the server may take to answer a message whose answer is thrown away.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The message with which a client takes leave.
const TERMINATE: &[u8] = b"X\0\0\0\x04";

const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A proxy before one server, at its own loopback port. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The task that accepts connections; none while they are refused.
    acceptor: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// Always there, except during drop.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    stalled: watch::Sender<bool>,
    trap: Mutex<Option<Trap>>,
    connections: Mutex<JoinSet<()>>,
}

/// Waits for bytes from a client; goes off once.
#[derive(Debug)]
struct Trap {
    pattern: Vec<u8>,
    then: Then,
}

/// What happens to the bytes that complete a pattern, and to their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The server gets them, its answer is thrown away, the connection is closed.
    CutAfter,
    /// The connection is closed.
    CutBefore,
    /// The server gets them with another last byte, and the connection lives on.
    Spoil,
}

/// What a spoiled pattern ends in: no statement has it outside of texts.
const SPOILED: u8 = b'?';

/// The bytes that set off a trap and were not forwarded yet.
struct Caught {
    bytes: Vec<u8>,
    /// Where in the bytes the pattern ends.
    pattern_end: usize,
    then: Then,
}

impl Proxy {
    /// Starts a proxy before the server at `target`.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Proxy> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            target,
            stalled: watch::Sender::new(false),
            trap: Mutex::new(None),
            connections: Mutex::new(JoinSet::new()),
        });
        let mut proxy = Proxy {
            address: loopback(0),
            shared,
            acceptor: tokio::sync::Mutex::new(None),
            runtime: Some(runtime),
        };
        for _ in 0..PORT_TRIES {
            proxy.address = loopback(free_port()?);
            if proxy.accept().await.is_ok() {
                return Ok(proxy);
            }
        }
        bail!("{PORT_TRIES} free ports in a row were taken before the proxy could listen")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all current connections, on both sides. New ones are still accepted.
    pub async fn cut(&self) {
        let mut connections = std::mem::take(&mut *lock(&self.shared.connections));
        connections.shutdown().await;
    }

    /// Stops all bytes, both ways; connections stay open and new ones are accepted.
    pub fn stall(&self) {
        self.shared.stalled.send_replace(true);
    }

    /// Lets bytes flow again after [`stall`](Proxy::stall); none are lost.
    pub fn resume(&self) {
        self.shared.stalled.send_replace(false);
    }

    /// Refuses new connections, as a server that is down does. Current ones live on.
    pub async fn refuse(&self) {
        if let Some(acceptor) = self.acceptor.lock().await.take() {
            acceptor.abort();
            // The listening socket is closed once the task is gone.
            let _ = acceptor.await;
        }
    }

    /// Accepts new connections again after [`refuse`](Proxy::refuse), at the same address.
    pub async fn accept(&self) -> anyhow::Result<()> {
        let mut acceptor = self.acceptor.lock().await;
        if acceptor.is_none() {
            let listener = self.runtime().spawn(TcpListener::bind(self.address)).await?;
            let listener = listener.context("the proxy's port was taken meanwhile")?;
            *acceptor = Some(self.runtime().spawn(accept_all(self.shared.clone(), listener)));
        }
        Ok(())
    }

    /// Waits once for `pattern` in what a client sends, then loses the connection *after* the
    /// server has done its work: the server gets the request that holds the pattern up to its end
    /// (a query or a sync message) and answers, the answer is thrown away, and both sides are
    /// closed. With `b"COMMIT"` the client cannot know the outcome, but the test does: committed.
    ///
    /// The target has to be a PostgreSQL server itself, the connection unencrypted.
    ///
    /// # Panics
    ///
    /// When the pattern is empty or longer than 1024 bytes.
    pub fn cut_after_client_message(&self, pattern: &[u8]) {
        self.set_trap(pattern, Then::CutAfter);
    }

    /// Waits once for `pattern` in what a client sends, then loses the connection *before* the
    /// server gets the bytes that complete it. The client sees the same as after
    /// [`cut_after_client_message`](Proxy::cut_after_client_message).
    ///
    /// # Panics
    ///
    /// When the pattern is empty or longer than 1024 bytes.
    pub fn cut_before_client_message(&self, pattern: &[u8]) {
        self.set_trap(pattern, Then::CutBefore);
    }

    /// Waits once for `pattern` in what a client sends, and makes the server refuse the statement
    /// that holds it: the pattern arrives with `?` for its last byte. The connection lives on, so
    /// that the server goes on with what the client sent behind it without waiting for an answer.
    ///
    /// # Panics
    ///
    /// When the pattern is empty or longer than 1024 bytes.
    pub fn spoil_client_message(&self, pattern: &[u8]) {
        self.set_trap(pattern, Then::Spoil);
    }

    /// Whether a pattern is still waited for; false once it was seen.
    pub fn is_waiting_for_message(&self) -> bool {
        lock(&self.shared.trap).is_some()
    }

    fn set_trap(&self, pattern: &[u8], then: Then) {
        assert!(
            (1..=PATTERN_BYTES_MAX).contains(&pattern.len()),
            "a pattern has 1 to {PATTERN_BYTES_MAX} bytes"
        );
        *lock(&self.shared.trap) = Some(Trap { pattern: pattern.to_owned(), then });
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime lives as long as the proxy")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A runtime may not be waited for inside another; its tasks end on their own.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept_all(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of files, say: it may pass, and trying at once would only burn time.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let mut connections = lock(&shared.connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(shared.clone(), client));
    }
}

/// Carries bytes both ways until one side closes, the trap goes off or the task is aborted.
async fn serve(shared: Arc<Shared>, mut client: TcpStream) {
    let Ok(mut server) = TcpStream::connect(shared.target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut client_reader, client_writer) = client.split();
    let (mut server_reader, mut server_writer) = server.split();
    let mut messages = Messages::default();
    let caught = tokio::select! {
        caught = carry_to_server(&shared, &mut client_reader, &mut server_writer, &mut messages) => caught,
        () = carry_to_client(&shared, &mut server_reader, client_writer) => None,
    };
    // From here on nothing reaches the client any more.
    if let Some(caught) = caught.filter(|caught| caught.then == Then::CutAfter) {
        let finish = async {
            tokio::join!(
                finish_request(caught, &mut client_reader, &mut server_writer, &mut messages),
                discard_answers(&mut server_reader),
            )
        };
        let _ = tokio::time::timeout(ANSWER_LIMIT, finish).await;
    }
}

async fn carry_to_server(
    shared: &Shared,
    client: &mut ReadHalf<'_>,
    server: &mut WriteHalf<'_>,
    messages: &mut Messages,
) -> Option<Caught> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut earlier = Vec::new();
    while let Ok(count @ 1..) = client.read(&mut buffer).await {
        shared.flowing().await;
        match shared.spring_trap(&earlier, &buffer[..count]) {
            Some(Caught { pattern_end, then: Then::Spoil, .. }) => {
                buffer[pattern_end - 1] = SPOILED;
            }
            Some(caught) => return Some(caught),
            None => {}
        }
        let bytes = &buffer[..count];
        earlier.extend_from_slice(bytes);
        earlier.drain(..earlier.len().saturating_sub(PATTERN_BYTES_MAX));
        messages.request_ends(bytes);
        server.write_all(bytes).await.ok()?;
    }
    None
}

async fn carry_to_client(shared: &Shared, server: &mut ReadHalf<'_>, mut client: WriteHalf<'_>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = server.read(&mut buffer).await {
        shared.flowing().await;
        if client.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Forwards up to the end of the request that holds the pattern, then takes leave of the server.
async fn finish_request(
    caught: Caught,
    client: &mut ReadHalf<'_>,
    server: &mut WriteHalf<'_>,
    messages: &mut Messages,
) -> io::Result<()> {
    let Caught { mut bytes, mut pattern_end, .. } = caught;
    loop {
        let ends = messages.request_ends(&bytes);
        if let Some(&end) = ends.iter().find(|&&end| end >= pattern_end) {
            server.write_all(&bytes[..end]).await?;
            return server.write_all(TERMINATE).await;
        }
        server.write_all(&bytes).await?;
        pattern_end = 0;
        bytes.resize(CHUNK_BYTES, 0);
        let count = client.read(&mut bytes).await?;
        if count == 0 {
            return server.shutdown().await;
        }
        bytes.truncate(count);
    }
}

/// Reads until the server closes: it has then done all it was asked to do before it was told to.
/// Waiting for its next sign of readiness would not do, since earlier requests may be unanswered.
async fn discard_answers(server: &mut ReadHalf<'_>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(1..) = server.read(&mut buffer).await {}
}

impl Shared {
    async fn flowing(&self) {
        // An error would mean that the sender is gone, and it lives in `self`.
        let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
    }

    /// Takes the trap if `bytes` complete its pattern.
    fn spring_trap(&self, earlier: &[u8], bytes: &[u8]) -> Option<Caught> {
        let mut trap = lock(&self.trap);
        let pattern_end = end_of(&trap.as_ref()?.pattern, earlier, bytes)?;
        let then = trap.take()?.then;
        Some(Caught { bytes: bytes.to_owned(), pattern_end, then })
    }
}

/// Where in `bytes` the first `pattern` ends that may have begun in `earlier`.
fn end_of(pattern: &[u8], earlier: &[u8], bytes: &[u8]) -> Option<usize> {
    let overlap = earlier.len().min(pattern.len() - 1);
    let recent = [&earlier[earlier.len() - overlap..], bytes].concat();
    let mut windows = recent.windows(pattern.len());
    let start = windows.position(|window| window == pattern)?;
    Some(start + pattern.len() - overlap)
}

/// A panic elsewhere does not make these values wrong.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn pattern_is_found_across_chunks() {
        assert_eq!(end_of(b"COMMIT", b"", b"Q....COMMIT\0"), Some(11));
        assert_eq!(end_of(b"COMMIT", b"Q....COM", b"MIT\0"), Some(3));
        assert_eq!(end_of(b"COMMIT", b"Q....COM", b"PARE\0"), None);
    }

    #[test]
    fn pattern_that_passed_earlier_is_not_found_again() {
        assert_eq!(end_of(b"COMMIT", b"Q....COMMIT", b"\0"), None);
        assert_eq!(end_of(b"x", b"x", b"x"), Some(1));
        assert_eq!(end_of(b"x", b"x", b"y"), None);
    }
}
