//! Loopback sockets.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::*;
use super::{Entry, local};
use crate::api::{Body, Kind};

pub const LIST: &[Entry] = &[
    ("23 tcp_ping_pong_64", tcp_ping_pong),
    ("24 tcp_1MiB", tcp_bulk),
    ("25 accept_and_connect", churn),
    ("26 udp_1KiB", udp),
    ("27 unix_ping_pong_64", unix_ping_pong),
];

fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(any()).await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let connecting = spawn(async move { TcpStream::connect(address).await.expect("a connection") });
    let (accepted, _) = listener.accept().await.expect("a connection");
    let connected = join(connecting).await;
    accepted.set_nodelay(true).expect("TCP_NODELAY");
    connected.set_nodelay(true).expect("TCP_NODELAY");
    (accepted, connected)
}

macro_rules! ping_pong {
    ($n:ident, $there:expr, $here:expr) => {{
        let (mut there, mut here) = ($there, $here);
        let echo = spawn(async move {
            let mut buffer = [0u8; 64];
            while there.read_exact(&mut buffer).await.is_ok() {
                there.write_all(&buffer).await.expect("an open stream");
            }
        });
        let mut buffer = [7u8; 64];
        for _ in 0..$n {
            here.write_all(&buffer).await.expect("an open stream");
            here.read_exact(&mut buffer).await.expect("an open stream");
        }
        drop(here);
        join(echo).await;
    }};
}

fn tcp_ping_pong(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        let (there, here) = tcp_pair().await;
        ping_pong!(n, there, here);
    })
}

fn unix_ping_pong(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        let (there, here) = UnixStream::pair().expect("a pair");
        ping_pong!(n, there, here);
    })
}

fn tcp_bulk(kind: Kind) -> Body {
    const LEN: usize = 1 << 20;
    local(Rt::new(kind), |n| async move {
        let (mut there, mut here) = tcp_pair().await;
        let writer = spawn(async move {
            let data = vec![7u8; LEN];
            for _ in 0..n {
                there.write_all(&data).await.expect("an open stream");
            }
        });
        let mut buffer = vec![0u8; 64 << 10];
        let mut left = n as usize * LEN;
        while left > 0 {
            let got = here.read(&mut buffer).await.expect("an open stream");
            assert!(got > 0);
            left -= got;
        }
        join(writer).await;
    })
}

fn churn(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        let listener = TcpListener::bind(any()).await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let accepting = spawn(async move {
            for _ in 0..n {
                let (stream, _) = listener.accept().await.expect("a connection");
                // Closes with a reset, so that no port stays in TIME_WAIT; thousands would be used up.
                let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
        });
        for _ in 0..n {
            // The reset may arrive before connect, or before read.
            if let Ok(mut stream) = TcpStream::connect(address).await {
                let _ = stream.read(&mut [0u8; 1]).await;
            }
        }
        join(accepting).await;
    })
}

fn udp(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        let echo = UdpSocket::bind(any()).await.expect("a socket");
        let address = echo.local_addr().expect("an address");
        let echoing = spawn(async move {
            let mut buffer = [0u8; 2048];
            for _ in 0..n {
                let (len, from) = echo.recv_from(&mut buffer).await.expect("a datagram");
                echo.send_to(&buffer[..len], from).await.expect("sent");
            }
        });
        let socket = UdpSocket::bind(any()).await.expect("a socket");
        let mut buffer = [7u8; 2048];
        for _ in 0..n {
            socket.send_to(&buffer[..1024], address).await.expect("sent");
            socket.recv_from(&mut buffer).await.expect("a datagram");
        }
        join(echoing).await;
    })
}
