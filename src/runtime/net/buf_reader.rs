//! Reading lines, frames and other items from a stream.

use std::io;

use super::bytes::ReadBytes;
use super::received::{ReadProgress, Received};
use crate::framing::ReadRequest;

/// The default limit for a line, as in asyncio.
const LIMIT: usize = 64 << 10;

/// Reads a stream in large pieces, and returns it in items: lines, frames, or a number of bytes.
///
/// All its methods are cancel-safe: bytes leave the buffer only with the item they belong to. A read that is
/// dropped early has taken nothing, and the next one of any kind continues where the last item ended. So a line
/// can be awaited in `select!` or under a `timeout`.
///
/// The items are borrowed from the buffer: nothing is copied or allocated per item.
///
/// ```
/// use wakeloop::runtime::Runtime;
/// use wakeloop::runtime::net::{BufReader, UnixStream};
///
/// let rt = Runtime::new()?;
/// rt.block_on(async {
///     let (here, there) = UnixStream::pair()?;
///     here.write_all(b"GET /\r\nbody").await?;
///     let mut reader = BufReader::new(there);
///     assert_eq!(reader.next_line().await?.as_deref(), Some("GET /"));
///     assert_eq!(reader.read_exact(4).await?, b"body");
///     drop(here);
///     assert_eq!(reader.next_line().await?, None);
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct BufReader<R> {
    from: R,
    received: Received,
}

impl<R: ReadBytes + Sync> BufReader<R> {
    /// Creates a reader with a limit of 64 KiB.
    pub fn new(from: R) -> BufReader<R> {
        BufReader::with_limit(LIMIT, from)
    }

    /// Creates a reader in which lines, and items with other delimiters, have at most `limit` bytes before the
    /// delimiter. The limit bounds how much a peer can make us buffer.
    pub fn with_limit(limit: usize, from: R) -> BufReader<R> {
        BufReader { from, received: Received::new(limit) }
    }

    /// Returns what there is, at most `most` bytes, and waits for at least one. Empty at the end of the stream,
    /// or if `most` is 0.
    ///
    /// # Errors
    /// As [`ReadBytes::read`].
    pub async fn read(&mut self, most: usize) -> io::Result<&[u8]> {
        if most == 0 {
            return Ok(&[]);
        }
        self.item(&ReadRequest::Some(most)).await.map(Item::or_rest)
    }

    /// Reads exactly `len` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends before that, and the partial item is dropped; else as
    /// [`ReadBytes::read`].
    pub async fn read_exact(&mut self, len: usize) -> io::Result<&[u8]> {
        self.item(&ReadRequest::Exact(len)).await?.or_eof()
    }

    /// Reads up to and including `delimiter`. At the end of the stream it returns the rest, which may be empty.
    ///
    /// # Errors
    /// `InvalidInput` if the delimiter is empty. `InvalidData` if it does not come within the limit: the bytes
    /// stay and can be read in another way. Else as [`ReadBytes::read`].
    pub async fn read_until(&mut self, delimiter: &[u8]) -> io::Result<&[u8]> {
        if delimiter.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the delimiter is empty"));
        }
        self.item(&ReadRequest::until(delimiter)).await.map(Item::or_rest)
    }

    /// Reads a line with its `\n`, which the last line may lack. Empty at the end of the stream.
    ///
    /// # Errors
    /// `InvalidData` if it is longer than the limit: it stays and can be read in another way. Else as
    /// [`ReadBytes::read`].
    pub async fn read_line(&mut self) -> io::Result<&[u8]> {
        self.item(&ReadRequest::Line).await.map(Item::or_rest)
    }

    /// Reads a line as text, without its `\n` or `\r\n`. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// `InvalidData` if it is not UTF-8; the line is dropped then. Else as [`BufReader::read_line`].
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        let line = match self.read_line().await? {
            [] => return Ok(None),
            [line @ .., b'\r', b'\n'] | [line @ .., b'\n'] | line => line,
        };
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line.to_owned())),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Reads a frame: its length as four bytes, big-endian, then the payload, which is returned. Returns `None`
    /// at the end of the stream. The length is at most `limit`. The buffer grows with the received bytes, not
    /// with the announced length.
    ///
    /// # Errors
    /// `InvalidData` for a longer frame, which stays; `UnexpectedEof` if the stream ends within a frame, which
    /// is dropped; else as [`ReadBytes::read`].
    pub async fn read_frame(&mut self, limit: usize) -> io::Result<Option<&[u8]>> {
        match self.item(&ReadRequest::Frame(limit)).await? {
            Item::Rest([]) => Ok(None),
            item => item.or_eof().map(Some),
        }
    }

    async fn item(&mut self, request: &ReadRequest) -> io::Result<Item<'_>> {
        self.received.begin();
        loop {
            let found = self.received.find(request);
            if !self.received.is_pending(found) {
                return match self.received.take_found(found) {
                    ReadProgress::Item(bytes) => Ok(Item::Whole(bytes)),
                    ReadProgress::Rest(bytes) => Ok(Item::Rest(bytes)),
                    ReadProgress::TooLong(item) => Err(too_long(item.consumed)),
                    ReadProgress::Failed(error) => Err(error),
                    ReadProgress::Pending => unreachable!("something was found"),
                };
            }
            let got = self.from.read(self.received.room(request)?).await?;
            self.received.came(got);
        }
    }
}

impl<R> BufReader<R> {
    /// How many received bytes were not returned yet.
    pub fn buffered(&self) -> usize {
        self.received.len()
    }

    /// The stream. Reading from it directly skips the bytes in the buffer.
    pub fn get_ref(&self) -> &R {
        &self.from
    }

    /// Returns the stream. The bytes in the buffer are lost.
    pub fn into_inner(self) -> R {
        self.from
    }
}

/// The result of a read.
enum Item<'a> {
    Whole(&'a [u8]),
    /// The stream has ended before the item did.
    Rest(&'a [u8]),
}

impl<'a> Item<'a> {
    fn or_rest(self) -> &'a [u8] {
        match self {
            Item::Whole(bytes) | Item::Rest(bytes) => bytes,
        }
    }

    fn or_eof(self) -> io::Result<&'a [u8]> {
        match self {
            Item::Whole(bytes) => Ok(bytes),
            Item::Rest(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn too_long(len: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("an item of {len} bytes or more is longer than allowed"),
    )
}
