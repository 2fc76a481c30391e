//! Tests of what is built on sockets: halves, copies, buffers, vectored calls, Unix datagrams.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use wakeloop::join;
use wakeloop::runtime::net::{
    BufReader, BufWriter, ReadBytes, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixStream, WriteBytes,
    copy, copy_both_ways,
};
use wakeloop::runtime::time::timeout;
use wakeloop::runtime::{self, Builder, Runtime, yield_now};

const LONG: Duration = Duration::from_secs(10);

fn runtime() -> Runtime {
    Builder::new().worker_threads(2).build().unwrap()
}

fn run<F: Future<Output = ()>>(test: F) {
    runtime().block_on(timeout(LONG, test)).expect("in time");
}

async fn read_to_end(from: &impl ReadBytes) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        match from.read(&mut buffer).await.unwrap() {
            0 => return all,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}

#[test]
fn the_halves_of_a_stream_work_in_two_tasks() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = here.into_split();
        let writing = runtime::spawn(async move {
            for _ in 0..1000 {
                writer.write_all(&[7; 1000]).await.unwrap();
            }
            writer.finish().unwrap();
        });
        let reading = runtime::spawn(async move { read_to_end(&reader).await.len() });
        let (their_reader, their_writer) = there.split();
        let copied = copy(&their_reader, &their_writer).await.unwrap();
        their_writer.finish().unwrap();
        writing.await.unwrap();
        assert_eq!((copied, reading.await.unwrap()), (1_000_000, 1_000_000));
    });
}

#[test]
fn vectored_calls_take_and_fill_several_buffers() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let mut slices = [b"".as_slice(), b"one ", b"", b"two ", b"three"].map(IoSlice::new);
        here.write_all_vectored(&mut slices).await.unwrap();
        let (mut first, mut second) = ([0; 6], [0; 20]);
        let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let n = there.read_vectored(&mut buffers).await.unwrap();
        assert_eq!((n, &first, &second[..n - 6]), (13, b"one tw", b"o three".as_slice()));
        // More than the socket buffers.
        let big = vec![5; 3_000_000];
        let reading = runtime::spawn(async move { read_to_end(&there).await.len() });
        let mut slices = [IoSlice::new(&big), IoSlice::new(&big)];
        here.write_all_vectored(&mut slices).await.unwrap();
        drop(here);
        assert_eq!(reading.await.unwrap(), 6_000_000);
    });
}

#[test]
fn a_proxy_passes_bytes_and_ends_on_both_ways() {
    run(async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server_address = server.local_addr().unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy_address = proxy.local_addr().unwrap();
        let serving = runtime::spawn(async move {
            let (stream, _) = server.accept().await.unwrap();
            // Answers only after the end of the stream, so the end must be passed on.
            let got = read_to_end(&stream).await;
            stream.write_all(format!("{} bytes", got.len()).as_bytes()).await.unwrap();
        });
        let proxying = runtime::spawn(async move {
            let (client, _) = proxy.accept().await.unwrap();
            let server = TcpStream::connect(server_address).await.unwrap();
            copy_both_ways(&client, &server).await.unwrap()
        });
        let client = TcpStream::connect(proxy_address).await.unwrap();
        client.write_all(&vec![1; 100_000]).await.unwrap();
        client.finish().unwrap();
        assert_eq!(read_to_end(&client).await, b"100000 bytes");
        assert_eq!(proxying.await.unwrap(), (100_000, 12));
        serving.await.unwrap();
    });
}

#[test]
fn a_buffered_writer_sends_when_full_and_when_flushed() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let mut writer = BufWriter::with_capacity(10, here);
        writer.write_all(b"12345").await.unwrap();
        writer.write_all(b"67890").await.unwrap();
        assert_eq!(writer.buffered(), 10);
        let nothing = timeout(Duration::from_millis(5), there.read(&mut [0; 1])).await;
        assert!(nothing.is_err());
        writer.write_all(b"abcdefghijklmnop").await.unwrap();
        assert_eq!(writer.buffered(), 0);
        writer.write_all(b"end").await.unwrap();
        writer.flush().await.unwrap();
        drop(writer);
        assert_eq!(read_to_end(&there).await, b"1234567890abcdefghijklmnopend");
    });
}

#[test]
fn unix_datagrams_keep_their_order_and_make_the_sender_wait() {
    run(async {
        let (a, b) = UnixDatagram::pair().unwrap();
        let sending = runtime::spawn(async move {
            for n in 0..1000u32 {
                assert_eq!(a.send(&n.to_le_bytes()).await.unwrap(), 4);
            }
        });
        for n in 0..1000u32 {
            let mut buffer = [0; 10];
            assert_eq!(b.recv(&mut buffer).await.unwrap(), 4);
            assert_eq!(u32::from_le_bytes(buffer[..4].try_into().unwrap()), n);
        }
        sending.await.unwrap();

        let folder = std::env::temp_dir().join(format!("wakeloop-datagrams-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (one, two) = (folder.join("one"), folder.join("two"));
        let (first, second) = (UnixDatagram::bind(&one).unwrap(), UnixDatagram::bind(&two).unwrap());
        first.send_to(b"hello", &two).await.unwrap();
        let mut buffer = [0; 10];
        let (n, from) = second.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..n], from.as_pathname()), (b"hello".as_slice(), Some(one.as_path())));
        let unbound = UnixDatagram::unbound().unwrap();
        unbound.connect(&one).unwrap();
        unbound.send(b"anonymous").await.unwrap();
        assert_eq!(first.recv(&mut buffer).await.unwrap(), 9);
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn readiness_is_waited_for_without_a_buffer() {
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut buffer = [0; 64];
        assert_eq!(ours.try_read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let writer = runtime::spawn(async move {
            yield_now().await;
            theirs.write_all(b"once").await.unwrap();
            yield_now().await;
            theirs.write_all(b"again").await.unwrap();
        });
        let mut got = Vec::new();
        loop {
            ours.readable().await.unwrap();
            match ours.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&buffer[..n]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(got, b"onceagain");
        writer.await.unwrap();
    });
}

#[test]
fn data_that_does_not_fit_is_written_when_there_is_room() {
    const LEN: usize = 1 << 20;
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let data = vec![7; LEN];
        let mut sent = 0;
        let full = loop {
            match ours.try_write(&data[sent..]) {
                Ok(n) => sent += n,
                Err(error) => break error.kind(),
            }
        };
        assert_eq!(full, io::ErrorKind::WouldBlock);
        let reader = runtime::spawn(async move {
            let mut got = vec![0; LEN];
            theirs.read_exact(&mut got).await.unwrap();
            got
        });
        while sent < LEN {
            ours.writable().await.unwrap();
            match ours.try_write(&data[sent..]) {
                Ok(n) => sent += n,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(reader.await.unwrap(), data);
    });
}

/// More buffers than one system call takes must not look like a full or empty socket.
#[test]
fn thousands_of_buffers_are_written_and_read() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
        let mut slices: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
        here.write_all_vectored(&mut slices).await.unwrap();
        let (mut got, mut received) = (0, vec![0; bytes.len()]);
        while got < received.len() {
            let mut room: Vec<_> = received[got..].chunks_mut(1).map(IoSliceMut::new).collect();
            got += there.read_vectored(&mut room).await.unwrap();
        }
        assert_eq!(received, bytes);
    });
}

/// Sends `bytes` with a descriptor.
fn send_with_descriptor(stream: &UnixStream, bytes: &[u8]) {
    let own = stream.as_raw_fd();
    let mut control = [0u64; 8];
    let mut data = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a zeroed header is valid. The pointers are to values that live until the call is over, and there
    // is room for one descriptor.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut data;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let message = libc::CMSG_FIRSTHDR(&header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(message).cast::<i32>().write_unaligned(own);
        libc::sendmsg(own, &header, 0)
    };
    assert_eq!(sent, bytes.len() as isize);
}

/// Each message with a descriptor ends a read, and there is no separate event for the data after it.
#[test]
fn what_comes_behind_a_descriptor_is_read_without_a_further_event() {
    for (vectored, size) in [(false, 100), (false, 4000), (true, 100), (true, 4000)] {
        run(async move {
            let (here, there) = UnixStream::pair().unwrap();
            // Its readiness is up to date: nothing is there.
            assert_eq!(there.try_read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for n in 0..4 {
                send_with_descriptor(&here, &[n]);
            }
            here.write_all(b"rest").await.unwrap();
            let mut got = Vec::new();
            while got.len() < 8 {
                let mut buffer = vec![0; size];
                let n = if vectored {
                    there.read_vectored(&mut [IoSliceMut::new(&mut buffer)]).await.unwrap()
                } else {
                    there.read(&mut buffer).await.unwrap()
                };
                got.extend_from_slice(&buffer[..n]);
            }
            assert_eq!(got, b"\x00\x01\x02\x03rest");
        });
    }
}

/// As above, for the mark of urgent data in a TCP stream.
#[cfg(target_os = "linux")]
#[test]
fn what_comes_behind_urgent_data_is_read_without_a_further_event() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (there, _) = listener.accept().await.unwrap();
        assert_eq!(there.try_read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        here.write_all(b"before").await.unwrap();
        // SAFETY: the buffer is valid for its length.
        let sent = unsafe { libc::send(here.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        here.write_all(b"behind").await.unwrap();
        runtime::time::sleep(Duration::from_millis(20)).await;
        let mut got = Vec::new();
        while got.len() < 12 {
            let mut buffer = [0; 100];
            let n = there.read(&mut buffer).await.unwrap();
            got.extend_from_slice(&buffer[..n]);
        }
        assert_eq!(got, b"beforebehind");
    });
}

#[test]
fn a_buffered_reader_hands_out_lines_frames_and_bytes_however_they_come() {
    // As many messages as can be sent in pieces of that size in a moment.
    for (piece, messages) in [(1, 50), (3, 90), (1000, 300), (100_000, 300)] {
        run(async move {
            let (here, there) = UnixStream::pair().unwrap();
            let mut sent = Vec::new();
            for n in 0..messages {
                sent.extend(format!("line {n}\r\n").into_bytes());
                let body = vec![n as u8; n * 7];
                sent.extend((body.len() as u32).to_be_bytes());
                sent.extend(&body);
                sent.extend(b"abc--until--");
                sent.extend(&body);
            }
            sent.extend(b"the rest");
            let writing = runtime::spawn(async move {
                for piece in sent.chunks(piece) {
                    here.write_all(piece).await.unwrap();
                }
            });
            let mut reader = BufReader::with_limit(30, there);
            for n in 0..messages {
                let body = vec![n as u8; n * 7];
                assert_eq!(reader.next_line().await.unwrap().unwrap(), format!("line {n}"));
                assert_eq!(reader.read_frame(3000).await.unwrap().unwrap(), body);
                assert_eq!(reader.read_until(b"--until--").await.unwrap(), b"abc--until--");
                assert_eq!(reader.read_exact(body.len()).await.unwrap(), body);
            }
            assert_eq!(reader.read_line().await.unwrap(), b"the rest");
            assert_eq!(reader.read_line().await.unwrap(), b"");
            assert_eq!(reader.next_line().await.unwrap(), None);
            assert_eq!(reader.read_frame(10).await.unwrap(), None);
            assert_eq!(reader.read(10).await.unwrap(), b"");
            writing.await.unwrap();
        });
    }
}

#[test]
fn a_stream_is_read_and_written_through_pointers_to_it() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let (here, there) = (Arc::new(here), Box::new(there));
        let mut writer = BufWriter::new(here.clone());
        writer.write_all(b"hello\n").await.unwrap();
        writer.flush().await.unwrap();
        let mut reader = BufReader::new(&there);
        assert_eq!(reader.next_line().await.unwrap().unwrap(), "hello");
        let echoing = async { copy(&there, &there).await.unwrap() };
        let asking = async {
            here.write_all(b"again\n").await.unwrap();
            WriteBytes::finish(&here).unwrap();
            BufReader::new(here.clone()).next_line().await.unwrap().unwrap()
        };
        assert_eq!(join!(echoing, asking), (6, "again".to_owned()));
    });
}

#[test]
fn a_cancelled_read_has_taken_nothing() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let mut reader = BufReader::new(there);
        here.write_all(b"half a ").await.unwrap();
        for _ in 0..3 {
            timeout(Duration::from_millis(2), reader.read_line()).await.unwrap_err();
        }
        assert_eq!(reader.buffered(), 7);
        here.write_all(b"line\nand more").await.unwrap();
        assert_eq!(reader.read_line().await.unwrap(), b"half a line\n");
        assert_eq!(reader.read(3).await.unwrap(), b"and");
        assert_eq!(reader.read(0).await.unwrap(), b"");
        drop(here);
        assert_eq!(reader.read_exact(6).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn an_item_that_is_longer_than_allowed_is_an_error_and_stays() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let mut reader = BufReader::with_limit(8, there);
        here.write_all(b"a long line\n\x00\x00\x00\x09ninebytes").await.unwrap();
        for _ in 0..2 {
            assert_eq!(reader.read_line().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(reader.read_until(b"").await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(reader.read_exact(12).await.unwrap(), b"a long line\n");
        assert_eq!(reader.read_frame(8).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(reader.read_frame(9).await.unwrap().unwrap(), b"ninebytes");
        here.write_all(b"\xff\n").await.unwrap();
        assert_eq!(reader.next_line().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    });
}

#[test]
fn datagrams_are_sent_and_received_without_waiting() {
    run(async {
        let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let there = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(here.peer_addr().unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(there.try_recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(here.try_send_to(b"one", there.local_addr().unwrap()).unwrap(), 3);
        here.connect(there.local_addr().unwrap()).await.unwrap();
        assert_eq!(here.peer_addr().unwrap(), there.local_addr().unwrap());
        here.writable().await.unwrap();
        assert_eq!(here.try_send(b"two").unwrap(), 3);
        let mut buffer = [0; 8];
        for expected in [b"one", b"two"] {
            loop {
                there.readable().await.unwrap();
                match there.try_recv_from(&mut buffer) {
                    Ok(got) => break assert_eq!(got, (3, here.local_addr().unwrap())),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            assert_eq!(&buffer[..3], expected);
        }
        let (here, there) = UnixDatagram::pair().unwrap();
        assert!(there.peer_addr().unwrap().is_unnamed());
        assert_eq!(there.try_recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        here.try_send(b"three").unwrap();
        there.readable().await.unwrap();
        assert_eq!(there.try_recv(&mut buffer).unwrap(), 5);
        let full = loop {
            match here.try_send(&[0; 4000]) {
                Ok(_) => {}
                Err(error) => break error.kind(),
            }
        };
        assert_eq!(full, io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_peek_leaves_the_data_for_the_next_read() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (there, _) = listener.accept().await.unwrap();
        here.set_nodelay(true).unwrap();
        assert!(here.nodelay().unwrap() && !there.nodelay().unwrap());
        let peeking = runtime::spawn(async move {
            let mut buffer = [0; 2];
            assert_eq!(there.peek(&mut buffer).await.unwrap(), 2);
            assert_eq!(&buffer, b"by");
            (there.peek(&mut buffer).await.unwrap(), there)
        });
        yield_now().await;
        here.write_all(b"bytes").await.unwrap();
        let (peeked, there) = peeking.await.unwrap();
        drop(here);
        assert_eq!((peeked, read_to_end(&there).await), (2, b"bytes".to_vec()));
    });
}

/// The error of a refused datagram is reported once. After that the socket works as before.
#[test]
fn a_socket_whose_error_was_reported_is_not_ready_forever() {
    run(async {
        let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        here.connect(gone.local_addr().unwrap()).await.unwrap();
        drop(gone);
        here.send(b"?").await.unwrap();
        // The driver must see it first.
        runtime::time::sleep(Duration::from_millis(10)).await;
        let mut told = None;
        while told.is_none() {
            here.readable().await.unwrap();
            match here.try_recv(&mut [0; 8]).unwrap_err().kind() {
                io::ErrorKind::WouldBlock => {}
                kind => told = Some(kind),
            }
        }
        assert_eq!(told, Some(io::ErrorKind::ConnectionRefused));
        assert_eq!(here.try_recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        timeout(Duration::from_millis(20), here.readable()).await.unwrap_err();
    });
}
