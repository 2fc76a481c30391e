//! Finds where an item ends in a stream of bytes: after a delimiter, after so many bytes, after a frame's header and
//! body.
//!
//! Everything here is a function of the bytes received so far; sockets, buffers and Python are elsewhere. The native
//! `StreamReader` (`transport::streams`), `TcpStream` and `runtime::net` all find their items here.
//!
//! - Nothing is searched twice: a search that finds no delimiter notes how far it has looked, and the next one goes on
//!   from there when more bytes have come.
//! - A limit counts as in asyncio's streams: the bytes before the delimiter, not the delimiter itself.

use std::sync::Arc;

/// The item that a reader wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRequest {
    /// Any bytes, at most this many.
    Some(usize),
    /// Everything up to the end of the stream.
    All,
    /// Exactly this many bytes.
    Exact(usize),
    /// Everything up to and including the delimiter that ends first. There is at least one, and none is empty.
    Until(Arc<[Box<[u8]>]>),
    /// A line with its `\n`.
    Line,
    /// A frame: its length as four bytes, big-endian, then the payload, which has at most this many bytes.
    Frame(usize),
}

/// The result of looking for the end of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemEnd {
    /// The item has `len` bytes, after `skip` bytes.
    Found {
        skip: usize,
        len: usize,
    },
    /// The end is not known before there are at least `total` bytes.
    Missing {
        total: usize,
    },
    TooLong(TooLong),
}

/// An item that is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// How many bytes the item is known to have: those before the delimiter, or, without a delimiter, those that are
    /// known to hold none. For a frame, the length that its header announces.
    pub consumed: usize,
    /// Where the delimiter ends, if it is here.
    pub end: Option<usize>,
}

/// The length of a frame's header.
const HEADER: usize = 4;

impl ReadRequest {
    /// Everything up to and including `delimiter`, which is not empty.
    pub fn until(delimiter: &[u8]) -> ReadRequest {
        ReadRequest::Until([delimiter.into()].into())
    }

    /// Looks for the end of the item at the front of `data`. An earlier call has found that the first `searched`
    /// bytes hold no delimiter. This call updates the number.
    pub(crate) fn find(&self, data: &[u8], searched: &mut usize, limit: usize) -> ItemEnd {
        match self {
            ReadRequest::Some(_) if data.is_empty() => ItemEnd::Missing { total: 1 },
            ReadRequest::Some(most) => ItemEnd::Found { skip: 0, len: data.len().min(*most) },
            ReadRequest::All => ItemEnd::Missing { total: data.len() + 1 },
            ReadRequest::Exact(len) => sized(data, 0, *len),
            ReadRequest::Line => find_line(data, searched, limit),
            ReadRequest::Until(delimiters) => {
                find_delimiter(data, delimiters.iter().map(|delimiter| &**delimiter), searched, limit)
            }
            ReadRequest::Frame(most) => match payload_length(data) {
                None => ItemEnd::Missing { total: HEADER },
                Some(len) if len > *most => ItemEnd::TooLong(TooLong { consumed: len, end: None }),
                Some(len) => sized(data, HEADER, len),
            },
        }
    }
}

/// The length that the header of a frame announces, if the header is here.
fn payload_length(data: &[u8]) -> Option<usize> {
    data.first_chunk::<HEADER>().map(|header| u32::from_be_bytes(*header) as usize)
}

/// How many bytes the frame at the front of `data` has, its header included; those of the header alone, if that is not
/// here.
#[cfg(feature = "python")]
pub(crate) fn frame_length(data: &[u8]) -> usize {
    HEADER.saturating_add(payload_length(data).unwrap_or(0))
}

fn sized(data: &[u8], skip: usize, len: usize) -> ItemEnd {
    if data.len() - skip >= len {
        ItemEnd::Found { skip, len }
    } else {
        ItemEnd::Missing { total: skip.saturating_add(len) }
    }
}

/// Finds the end of the line at the front of `data`; see [`find_delimiter`].
#[inline(always)]
pub(crate) fn find_line(data: &[u8], searched: &mut usize, limit: usize) -> ItemEnd {
    find_delimiter(data, std::iter::once(&b"\n"[..]), searched, limit)
}

/// Finds the end of the item at the front of `data`, which ends with one of the `delimiters`: with the one that ends
/// first. There is at least one delimiter, and none is empty. The first `searched` bytes are known to hold none. If
/// none is found, `searched` grows to the number of bytes that need not be searched again. At most `limit` bytes may
/// come before the delimiter.
#[inline(always)]
pub(crate) fn find_delimiter<'a>(
    data: &[u8],
    delimiters: impl Iterator<Item = &'a [u8]> + Clone,
    searched: &mut usize,
    limit: usize,
) -> ItemEnd {
    let from = (*searched).min(data.len());
    let lengths = delimiters.clone().map(<[u8]>::len);
    let (shortest, longest) = (lengths.clone().min().unwrap_or(1), lengths.max().unwrap_or(1));
    if data.len() - from >= shortest {
        let ends = delimiters.filter_map(|delimiter| {
            let start = from + position(&data[from..], delimiter)?;
            Some((start + delimiter.len(), start))
        });
        match ends.min_by_key(|(end, _)| *end) {
            Some((end, start)) if start > limit => {
                return ItemEnd::TooLong(TooLong { consumed: start, end: Some(end) });
            }
            Some((end, _)) => return ItemEnd::Found { skip: 0, len: end },
            None => {}
        }
        // The last bytes may be the beginning of a delimiter.
        *searched = from.max((data.len() + 1).saturating_sub(longest));
    }
    if *searched > limit {
        return ItemEnd::TooLong(TooLong { consumed: *searched, end: None });
    }
    ItemEnd::Missing { total: data.len() + 1 }
}

/// Finds where `wanted`, which is not empty, begins in `data`.
#[inline(always)]
pub(crate) fn position(data: &[u8], wanted: &[u8]) -> Option<usize> {
    // The C functions require valid pointers, also for a length of zero.
    if data.len() < wanted.len() {
        return None;
    }
    // SAFETY: both functions read within the two slices, of which neither is empty, and return null or a place in
    // `data`.
    let found = unsafe {
        match wanted {
            [byte] => libc::memchr(data.as_ptr().cast(), i32::from(*byte), data.len()),
            // Miri does not know `memmem`.
            _ if cfg!(miri) => return data.windows(wanted.len()).position(|place| place == wanted),
            _ => libc::memmem(data.as_ptr().cast(), data.len(), wanted.as_ptr().cast(), wanted.len()),
        }
    };
    (!found.is_null()).then(|| found.addr() - data.as_ptr().addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn items_end_where_they_should() {
        use ReadRequest::{All, Exact, Frame, Line, Some as AtMost};
        let until = ReadRequest::until;
        let any = |list: &[&[u8]]| ReadRequest::Until(list.iter().map(|one| (*one).into()).collect());
        let found = |skip, len| ItemEnd::Found { skip, len };
        let missing = |total| ItemEnd::Missing { total };
        let too_long = |consumed, end| ItemEnd::TooLong(TooLong { consumed, end });
        for (request, data, expected) in [
            (AtMost(3), &b"abcd"[..], found(0, 3)),
            (AtMost(3), b"", missing(1)),
            (AtMost(0), b"a", found(0, 0)),
            (All, b"abcd", missing(5)),
            (Exact(3), b"abcd", found(0, 3)),
            (Exact(0), b"", found(0, 0)),
            (Exact(5), b"abcd", missing(5)),
            (Line, b"ab\ncd\n", found(0, 3)),
            (Line, b"abcd", missing(5)),
            (until(b"\r\n"), b"a\rb\r\nc", found(0, 5)),
            (until(b"\r\n"), b"a\r", missing(3)),
            (any(&[b"b", b"abc"]), b"abc", found(0, 2)),
            (any(&[b"cde", b"ab"]), b"abcde", found(0, 2)),
            (any(&[b"x", b"abc"]), b"ab", missing(3)),
            (Frame(9), b"\0\0\0\x02abc", found(4, 2)),
            (Frame(9), b"\0\0\0\0", found(4, 0)),
            (Frame(9), b"\0\0", missing(4)),
            (Frame(9), b"\0\0\0\x09abc", missing(13)),
            (Frame(9), b"\0\0\0\x0a", too_long(10, None)),
            (Line, b"123456789\n", found(0, 10)),
            (Line, b"123456789", missing(10)),
            (Line, b"1234567890", too_long(10, None)),
            (Line, b"1234567890\n", too_long(10, Some(11))),
            (until(b"\r\n"), b"123456789\r", missing(11)),
            (until(b"\r\n"), b"123456789\r\n", found(0, 11)),
        ] {
            let mut searched = 0;
            for look in ["the first", "the second"] {
                assert_eq!(
                    request.find(data, &mut searched, 9),
                    expected,
                    "{request:?} in {data:?}, {look} look"
                );
            }
        }
    }

    #[test]
    fn a_search_resumes_where_a_delimiter_may_have_begun() {
        let request = ReadRequest::Until([b"\n"[..].into(), b"\r\n\r\n"[..].into()].into());
        let mut searched = 0;
        for (data, expected) in [(&b"ab"[..], 0), (b"abcdef", 3), (b"abcdef\r", 4)] {
            assert!(matches!(request.find(data, &mut searched, 100), ItemEnd::Missing { .. }));
            assert_eq!(searched, expected);
        }
    }

    fn letters(size: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], size)
    }

    proptest! {
        /// However the bytes come in, the item ends where a search of the whole ends it.
        #[test]
        fn pieces_are_searched_like_the_whole(
            data in letters(0..200),
            delimiters in proptest::collection::vec(letters(1..6), 1..4),
            step in 1usize..20,
        ) {
            let request = ReadRequest::Until(delimiters.iter().map(|one| one[..].into()).collect());
            let ends = delimiters.iter().filter_map(|delimiter| {
                data.windows(delimiter.len()).position(|at| at == delimiter).map(|at| at + delimiter.len())
            });
            let (mut searched, mut found) = (0, None);
            for have in (0..=data.len()).step_by(step).chain([data.len()]) {
                if let ItemEnd::Found { len, .. } = request.find(&data[..have], &mut searched, 1000) {
                    found = Some(len);
                    break;
                }
            }
            prop_assert_eq!(found, ends.min());
        }
    }
}
