//! A chat: every line that a client sends goes to all others.
//!
//! `cargo run --release --example chat --no-default-features -- 127.0.0.1:7001`, then `nc 127.0.0.1 7001`, twice.
//!
//! Each client has two tasks: one reads its lines, one writes what the others say. Between them is a bounded
//! channel; a client that does not read fast enough misses lines, but never holds up the others.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wakeloop::runtime::net::{BufReader, ReadBytes, TcpListener, TcpStream, WriteBytes};
use wakeloop::runtime::sync::mpsc;
use wakeloop::runtime::time::sleep;
use wakeloop::runtime::{self, Runtime};

/// How many lines may wait for a slow client.
const BACKLOG: usize = 100;
const MAX_LINE: usize = 4096;

type Line = Arc<[u8]>;

#[derive(Default)]
struct Room {
    clients: HashMap<u64, mpsc::Sender<Line>>,
    next: u64,
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7001".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("chatting at {}", listener.local_addr()?);
        let room = Arc::new(Mutex::new(Room::default()));
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(runtime::spawn(client(stream, room.clone()))),
                Err(error) => {
                    eprintln!("accept: {error}");
                    // If no descriptor is left, the next accept would fail at once too.
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    })
}

async fn client(stream: TcpStream, room: Arc<Mutex<Room>>) {
    let (sender, mut lines) = mpsc::bounded::<Line>(BACKLOG);
    let number = {
        let mut room = room.lock().unwrap();
        room.next += 1;
        let number = room.next;
        room.clients.insert(number, sender);
        number
    };
    let (reader, writer) = stream.into_split();
    let writing = runtime::spawn(async move {
        while let Some(line) = lines.recv().await {
            writer.write_all(&line).await?;
        }
        writer.finish()
    });
    say(&room, number, format!("* {number} is here\n").as_bytes());
    if let Err(error) = listen(reader, &room, number).await {
        eprintln!("client {number}: {error}");
    }
    // When the sender is dropped, the writing task sends what is left and ends.
    room.lock().unwrap().clients.remove(&number);
    say(&room, number, format!("* {number} has left\n").as_bytes());
    let _ = writing.await;
}

async fn listen(reader: impl ReadBytes + Sync, room: &Mutex<Room>, number: u64) -> io::Result<()> {
    let mut reader = BufReader::with_limit(MAX_LINE, reader);
    loop {
        // The line comes with its end, which the last line of a client may lack.
        match reader.read_line().await? {
            line @ [.., b'\n'] => say(room, number, &[format!("{number}: ").as_bytes(), line].concat()),
            _ => return Ok(()),
        }
    }
}

fn say(room: &Mutex<Room>, from: u64, line: &[u8]) {
    let line: Line = line.into();
    for (number, client) in &room.lock().unwrap().clients {
        if *number != from {
            // The channel is full or closed: this client misses a line.
            let _ = client.try_send(line.clone());
        }
    }
}
