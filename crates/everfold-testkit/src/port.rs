//! Free ports on the loopback address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

/// First port handed out, and how many follow it.
///
/// They lie below the range from which the kernel picks the local end of outgoing connections.
/// A port of that range could be taken by any client while our server is down, and a client that
/// retries such a port on loopback can even end up connected to itself.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

const TRIES: u16 = 100;

/// A port nobody listens on at this moment. It may be taken before it is used: be ready to retry.
pub fn free_port() -> anyhow::Result<u16> {
    let random = uuid::Uuid::now_v7().as_u128();
    let start = (random % u128::from(COUNT)) as u16;
    for step in 0..TRIES {
        let port = FIRST + (start + step) % COUNT;
        if TcpListener::bind(loopback(port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port among {TRIES} from {} on", FIRST + start)
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
