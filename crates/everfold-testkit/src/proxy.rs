//! A TCP proxy that breaks connections at a chosen moment.
//!
//! It has a runtime of its own, so bytes keep flowing while a test blocks its thread, for instance
//! by waiting for a program that talks through the proxy.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
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
use crate::trap::{Caught, Then, Trap};

const PORT_TRIES: usize = 10;
const CHUNK_BYTES: usize = 16 * 1024;

/// Longest pattern a trap may wait for; so many bytes are remembered from chunk to chunk.
const PATTERN_BYTES_MAX: usize = 1024;

/// What a spoiled pattern ends in: no statement has it outside of texts.
const SPOILED: u8 = b'?';

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
    /// All connections are lost, and none is made any more.
    dead: watch::Sender<bool>,
    trap: Mutex<Option<Trap>>,
    requests: AtomicU64,
    connections: Mutex<JoinSet<()>>,
}

/// What becomes of the request at which a client is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server never gets it.
    Request,
    /// The server does what it says; nobody hears of it.
    Answer,
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
            dead: watch::Sender::new(false),
            trap: Mutex::new(None),
            requests: AtomicU64::new(0),
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

    /// Loses its clients for good at their `number`-th request from now on, over all connections: as
    /// if their process was killed. All connections are closed and none is made any more.
    ///
    /// The target has to be a PostgreSQL server itself, the connections unencrypted.
    pub fn die_at_request(&self, number: u64, loss: Loss) {
        let then = match loss {
            Loss::Request => Then::CutBefore,
            Loss::Answer => Then::CutAfter,
        };
        *lock(&self.shared.trap) = Some(Trap::for_request(number, then));
    }

    /// Stalls all connections at the `number`-th request from now on, which is held back until
    /// [`resume`](Proxy::resume), then delivered: as if its clients were paused for a time.
    pub fn stall_at_request(&self, number: u64) {
        *lock(&self.shared.trap) = Some(Trap::for_request(number, Then::Stall));
    }

    /// The same, counted from the first request behind the one that holds `pattern`.
    ///
    /// # Panics
    ///
    /// When the pattern is empty or longer than 1024 bytes.
    pub fn stall_at_request_after(&self, pattern: &[u8], number: u64) {
        check(pattern);
        let trap = Trap::for_request_after(pattern, number, Then::Stall);
        *lock(&self.shared.trap) = Some(trap);
    }

    /// How many requests clients have sent so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Whether a pattern or a request is still waited for; false once it was seen.
    pub fn is_waiting_for_message(&self) -> bool {
        lock(&self.shared.trap).is_some()
    }

    fn set_trap(&self, pattern: &[u8], then: Then) {
        check(pattern);
        *lock(&self.shared.trap) = Some(Trap::for_pattern(pattern, then));
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

fn check(pattern: &[u8]) {
    assert!(
        (1..=PATTERN_BYTES_MAX).contains(&pattern.len()),
        "a pattern has 1 to {PATTERN_BYTES_MAX} bytes"
    );
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
    let mut dead = shared.dead.subscribe();
    if *dead.borrow() {
        return;
    }
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
        _ = dead.wait_for(|dead| *dead) => None,
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
        match shared.spring_trap(&earlier, &buffer[..count], messages) {
            Some(Caught { pattern_end, then: Then::Spoil, .. }) => {
                buffer[pattern_end - 1] = SPOILED;
            }
            Some(Caught { start, then: Then::Stall, .. }) => {
                server.write_all(&buffer[..start]).await.ok()?;
                shared.flowing().await;
                shared.count(messages.request_ends(&buffer[..count]));
                server.write_all(&buffer[start..count]).await.ok()?;
                continue;
            }
            Some(caught) => {
                // What came before it in the same piece is not lost.
                if caught.then == Then::CutBefore {
                    server.write_all(&buffer[..caught.start]).await.ok()?;
                }
                return Some(caught);
            }
            None => {}
        }
        let bytes = &buffer[..count];
        earlier.extend_from_slice(bytes);
        earlier.drain(..earlier.len().saturating_sub(PATTERN_BYTES_MAX));
        shared.count(messages.request_ends(bytes));
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
    fn count(&self, ends: Vec<usize>) {
        self.requests.fetch_add(ends.len() as u64, Ordering::Relaxed);
    }

    async fn flowing(&self) {
        // An error would mean that the sender is gone, and it lives in `self`.
        let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
    }

    /// Takes the trap if `bytes` complete what it waits for.
    fn spring_trap(&self, earlier: &[u8], bytes: &[u8], messages: &Messages) -> Option<Caught> {
        let mut trap = lock(&self.trap);
        let caught = trap.as_mut()?.spring(earlier, bytes, messages)?;
        *trap = None;
        if caught.loses_all {
            self.dead.send_replace(true);
        }
        if caught.then == Then::Stall {
            self.stalled.send_replace(true);
        }
        Some(caught)
    }
}

/// A panic elsewhere does not make these values wrong.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
