//! Finds where an item ends in a stream of bytes. It knows nothing of sockets: everything is a function of the
//! bytes so far.

/// The item that a reader wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Any bytes, at most this many.
    Some(usize),
    /// Everything up to the end of the stream.
    All,
    /// Exactly this many bytes.
    Exact(usize),
    /// Everything up to and including this delimiter, which is not empty.
    Until(Box<[u8]>),
    /// A line with its `\n`.
    Line,
    /// A frame: its length as four bytes, big-endian, then the payload, which has at most this many bytes.
    Frame(usize),
}

/// The result of looking for the next item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The item has `len` bytes, after `skip` bytes.
    Item { skip: usize, len: usize },
    /// The buffer must hold at least this many bytes before more can be said.
    More { total: usize },
    /// The item is longer than allowed: it has at least `len` bytes.
    TooLong { len: usize },
}

/// The length of a frame's header.
const HEADER: usize = 4;

impl Want {
    /// Looks for the item at the front of `data`. The first `scanned` bytes are known to hold no delimiter; the
    /// look updates that number. An item with a delimiter has at most `limit` bytes.
    pub(super) fn find(&self, data: &[u8], scanned: &mut usize, limit: usize) -> Found {
        match self {
            Want::Some(_) if data.is_empty() => Found::More { total: 1 },
            Want::Some(most) => Found::Item { skip: 0, len: data.len().min(*most) },
            Want::All => Found::More { total: data.len() + 1 },
            Want::Exact(len) => whole(data, 0, *len),
            Want::Line => delimited(data, b"\n", scanned, limit),
            Want::Until(delimiter) => delimited(data, delimiter, scanned, limit),
            Want::Frame(most) => match data.first_chunk::<HEADER>() {
                None => Found::More { total: HEADER },
                Some(header) => match u32::from_be_bytes(*header) as usize {
                    len if len > *most => Found::TooLong { len },
                    len => whole(data, HEADER, len),
                },
            },
        }
    }
}

fn whole(data: &[u8], skip: usize, len: usize) -> Found {
    if data.len() - skip >= len {
        Found::Item { skip, len }
    } else {
        Found::More { total: skip.saturating_add(len) }
    }
}

fn delimited(data: &[u8], delimiter: &[u8], scanned: &mut usize, limit: usize) -> Found {
    let from = (*scanned).min(data.len());
    match position(&data[from..], delimiter) {
        Some(at) => match from + at + delimiter.len() {
            len if len > limit => Found::TooLong { len },
            len => Found::Item { skip: 0, len },
        },
        None => {
            // A part of the delimiter may be at the end.
            *scanned = from.max((data.len() + 1).saturating_sub(delimiter.len()));
            if data.len() > limit {
                Found::TooLong { len: data.len() }
            } else {
                Found::More { total: data.len() + 1 }
            }
        }
    }
}

/// Returns the position of `wanted` in `data`. `wanted` is not empty.
pub(super) fn position(data: &[u8], wanted: &[u8]) -> Option<usize> {
    // The C functions must not be called with nothing: the slice may be a dangling pointer.
    if data.len() < wanted.len() {
        return None;
    }
    // SAFETY: both functions read valid memory within the given lengths, and return null or a pointer into
    // `data`.
    let found = unsafe {
        match wanted {
            [byte] => libc::memchr(data.as_ptr().cast(), i32::from(*byte), data.len()),
            // Miri does not know the other function.
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

    fn find(want: &Want, data: &[u8], limit: usize) -> Found {
        want.find(data, &mut 0, limit)
    }

    #[test]
    fn items_end_where_they_should() {
        let until = |text: &[u8]| Want::Until(text.into());
        let item = |skip, len| Found::Item { skip, len };
        for (want, data, found) in [
            (Want::Some(3), &b"abcd"[..], item(0, 3)),
            (Want::Some(3), b"", Found::More { total: 1 }),
            (Want::Some(0), b"a", item(0, 0)),
            (Want::All, b"abcd", Found::More { total: 5 }),
            (Want::Exact(3), b"abcd", item(0, 3)),
            (Want::Exact(0), b"", item(0, 0)),
            (Want::Exact(5), b"abcd", Found::More { total: 5 }),
            (Want::Line, b"ab\ncd\n", item(0, 3)),
            (Want::Line, b"abcd", Found::More { total: 5 }),
            (until(b"\r\n"), b"a\rb\r\nc", item(0, 5)),
            (until(b"\r\n"), b"a\r", Found::More { total: 3 }),
            (Want::Frame(9), b"\0\0\0\x02abc", item(4, 2)),
            (Want::Frame(9), b"\0\0\0\0", item(4, 0)),
            (Want::Frame(9), b"\0\0", Found::More { total: 4 }),
            (Want::Frame(9), b"\0\0\0\x09abc", Found::More { total: 13 }),
            (Want::Frame(9), b"\0\0\0\x0a", Found::TooLong { len: 10 }),
            (Want::Line, b"abcdefghij", Found::TooLong { len: 10 }),
            (Want::Line, b"abcdefghi\n", Found::TooLong { len: 10 }),
        ] {
            assert_eq!(find(&want, data, 9), found, "{want:?} in {data:?}");
        }
    }

    proptest! {
        /// A delimiter is found where a search of the whole finds it, in whatever pieces the bytes come.
        #[test]
        fn pieces_are_searched_like_the_whole(
            data in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 0..200),
            delimiter in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 1..6),
            step in 1usize..20,
        ) {
            let want = Want::Until(delimiter.clone().into());
            let end = data.windows(delimiter.len()).position(|at| at == delimiter).map(|at| at + delimiter.len());
            let (mut scanned, mut found) = (0, None);
            for have in (0..=data.len()).step_by(step).chain([data.len()]) {
                if let Found::Item { len, .. } = want.find(&data[..have], &mut scanned, 1000) {
                    found = Some(len);
                    break;
                }
            }
            prop_assert_eq!(found, end);
        }
    }
}
