//! The reader of lines, frames and other items: whatever the pieces in which the bytes come, it finds what a search of
//! all bytes finds.

use std::io;

use super::read_buffer::ReadBuffer;
use super::{ReadProgress, ReadRequest, Received, TooLong};
use crate::fuzzing::Input;

/// The result of a search of all bytes.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The item, and how many bytes go with it.
    Item(Vec<u8>, usize),
    Rest(Vec<u8>),
    TooLong(TooLong),
    Pending,
    Failed(io::ErrorKind),
}

/// A stream that has ended: `None` at its end, or with an error.
type End = Option<io::ErrorKind>;

fn search(request: &ReadRequest, data: &[u8], end: Option<End>, limit: usize) -> Found {
    let ended = match end {
        None => Found::Pending,
        Some(None) => Found::Rest(data.to_vec()),
        Some(Some(kind)) => Found::Failed(kind),
    };
    let item = |from: usize, to: usize| match data.get(from..to) {
        Some(item) => Found::Item(item.to_vec(), to),
        None => Found::Pending,
    };
    let found = match request {
        ReadRequest::Some(_) if data.is_empty() => Found::Pending,
        ReadRequest::Some(most) => item(0, data.len().min(*most)),
        ReadRequest::All => Found::Pending,
        ReadRequest::Exact(length) => item(0, *length),
        ReadRequest::Line => delimited(&[b"\n"[..].into()], data, limit),
        ReadRequest::Until(delimiters) => delimited(delimiters, data, limit),
        ReadRequest::Frame(most) => match data {
            [a, b, c, d, ..] => match u32::from_be_bytes([*a, *b, *c, *d]) as usize {
                length if length > *most => Found::TooLong(TooLong { consumed: length, end: None }),
                length => item(4, 4 + length),
            },
            _ => Found::Pending,
        },
    };
    if found == Found::Pending { ended } else { found }
}

fn delimited(delimiters: &[Box<[u8]>], data: &[u8], limit: usize) -> Found {
    for end in 0..=data.len() {
        if let Some(delimiter) = delimiters.iter().find(|delimiter| data[..end].ends_with(delimiter)) {
            return match end - delimiter.len() {
                consumed if consumed > limit => Found::TooLong(TooLong { consumed, end: Some(end) }),
                _ => Found::Item(data[..end].to_vec(), end),
            };
        }
    }
    // As in asyncio: the last bytes may be the beginning of a delimiter.
    let longest = delimiters.iter().map(|delimiter| delimiter.len()).max().unwrap_or(1);
    match (data.len() + 1).saturating_sub(longest) {
        consumed if consumed > limit => Found::TooLong(TooLong { consumed, end: None }),
        _ => Found::Pending,
    }
}

fn request(input: &mut Input<'_>) -> ReadRequest {
    let sizes = [0, 1, 2, 3, 7, 40, 1000, 5000, 100_000, usize::MAX];
    let delimiters: [&[u8]; 8] = [b"\n", b"a", b"ab", b"ba", b"aab", b"\r\n", b"abab", b"\n\n"];
    match input.byte() % 6 {
        0 => ReadRequest::Some(input.one_of(&sizes)),
        1 => ReadRequest::All,
        2 => ReadRequest::Exact(input.one_of(&sizes)),
        3 => ReadRequest::Line,
        4 => ReadRequest::Frame(input.one_of(&sizes)),
        _ => ReadRequest::Until((0..=input.byte() % 3).map(|_| input.one_of(&delimiters).into()).collect()),
    }
}

pub(crate) fn run(mut input: Input<'_>) {
    let limit = input.one_of(&[0, 1, 4, 10, 100, 65_536]);
    let indexed = input.flag();
    let mut received = Received::new(limit);
    let (mut model, mut end): (Vec<u8>, Option<End>) = (Vec::new(), None);
    let mut wanted = ReadRequest::Line;
    while !input.is_empty() {
        match input.byte() % 16 {
            0..=4 if end.is_none() => {
                let piece = input.piece();
                let (got, _) = received.receive(&wanted, &piece[..]).expect("there is memory");
                assert!(got > 0 || piece.is_empty(), "there was no room");
                model.extend_from_slice(&piece[..got]);
                if got == 0 {
                    end = Some(None);
                }
                if indexed {
                    received.buffer.index_lines();
                }
            }
            // As in `ReadAhead`: bytes come into another buffer, and what is here is put in front of them.
            5 if end.is_none() => {
                let (piece, mut later) = (input.piece(), ReadBuffer::default());
                let (got, _) = later.fill(&piece[..], 0).expect("there is memory");
                model.extend_from_slice(&piece[..got]);
                if indexed {
                    later.index_lines();
                }
                if got > 0 {
                    later.prepend(&mut received.buffer).expect("there is memory");
                    received.buffer = later;
                }
            }
            6 if end.is_none() => {
                let kind = io::ErrorKind::ConnectionReset;
                received.fail(&kind.into());
                end = Some(Some(kind));
            }
            7 => {
                let kept: Result<(), ()> = received.try_take(&wanted, |_| Err(()));
                assert!(kept.is_err());
            }
            8 => received.give_back_memory(),
            look => {
                if look > 9 {
                    wanted = request(&mut input);
                    received.begin();
                }
                take(&mut received, &wanted, &mut model, end, &mut input);
            }
        }
        assert_eq!(received.buffer.bytes(), &model[..]);
        assert_eq!(received.at_eof(), model.is_empty() && end == Some(None));
    }
}

/// Takes the item, and compares it with that of the model.
fn take(
    received: &mut Received,
    wanted: &ReadRequest,
    model: &mut Vec<u8>,
    end: Option<End>,
    input: &mut Input<'_>,
) {
    let limit = received.limit();
    let expected = search(wanted, model, end, limit);
    assert_eq!(received.has(wanted), expected != Found::Pending, "{wanted:?}");
    match (received.take(wanted), expected) {
        (ReadProgress::Item(found), Found::Item(item, count)) => {
            assert_eq!(found, item, "{wanted:?}");
            model.drain(..count);
            received.begin();
        }
        (ReadProgress::Rest(found), Found::Rest(rest)) => {
            assert_eq!(found, rest, "{wanted:?}");
            model.clear();
        }
        (ReadProgress::TooLong(found), Found::TooLong(item)) => {
            assert_eq!(found, item, "{wanted:?}");
            if input.flag() {
                received.discard(found);
                model.drain(..found.end.unwrap_or(model.len()));
            }
            received.begin();
        }
        (ReadProgress::Failed(error), Found::Failed(kind)) => assert_eq!(error.kind(), kind),
        (ReadProgress::Pending, Found::Pending) => {}
        (found, expected) => panic!("{wanted:?} found {found:?}, and not {expected:?}"),
    }
}
