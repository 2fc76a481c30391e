//! The BIO of a TLS connection: OpenSSL reads what was lent or appended, in order, at most a record at a time, and what
//! it writes comes out. The model keeps bytes one by one.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::*;
use crate::fuzzing::{Input, python};

/// A BIO of the interpreter's OpenSSL, which every run uses again.
fn bio(functions: &'static Functions, method: usize) -> Bio {
    static BIO: OnceLock<usize> = OnceLock::new();
    // SAFETY: the method is `make_method`'s.
    *BIO.get_or_init(|| unsafe { (functions.BIO_new)(method as BioMethod) as usize }) as Bio
}

#[derive(Default)]
struct Model {
    input: VecDeque<u8>,
    /// The bytes read of the current record.
    record: Vec<u8>,
    output: Vec<u8>,
    active: bool,
    notified: usize,
}

impl Model {
    /// The result of a read with room for so many bytes.
    fn read(&mut self, size: usize) -> Vec<u8> {
        let mut read = Vec::new();
        while read.len() < size
            && let Some(byte) = self.input.pop_front()
        {
            read.push(byte);
            self.record.push(byte);
            if let [_, _, _, high, low, body @ ..] = &self.record[..]
                && body.len() == usize::from(u16::from_be_bytes([*high, *low]))
            {
                self.record.clear();
                break;
            }
        }
        read
    }
}

pub(crate) fn run(mut input: Input<'_>) {
    let library = python::openssl();
    let bio = bio(library.functions, library.method);
    let notified = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&notified);
    let io = Arc::new(Io::new(Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    })));
    // SAFETY: a live BIO, whose data `destroy` drops below.
    unsafe { (library.functions.BIO_set_data)(bio, Arc::into_raw(Arc::clone(&io)).cast_mut().cast()) };
    let mut model = Model::default();
    // What is lent. `None` after `append` has ended the loan.
    let mut loan: Option<Vec<u8>> = None;
    while !input.is_empty() {
        match input.byte() % 12 {
            0..=2 => {
                io.take_back();
                let piece = loan.insert(input.piece());
                // SAFETY: taken back before `loan` changes.
                unsafe { io.lend(piece) };
                model.input.extend(&*piece);
                model.active = true;
            }
            3 => {
                io.take_back();
                (loan, model.active) = (None, false);
            }
            4 => {
                let piece = input.piece();
                io.append(&piece);
                model.input.extend(piece);
            }
            5..=7 => {
                let size = input.one_of(&[0, 1, 2, 5, 30, 300, 17_000]);
                let (mut room, mut got) = (vec![0_u8; size], 0);
                let expected = model.read(size);
                // SAFETY: room for `size` bytes.
                let result = unsafe { read(bio, room.as_mut_ptr().cast(), size, &mut got) };
                assert_eq!((result == 1, &room[..got]), (!expected.is_empty(), &expected[..]));
            }
            8 => {
                let (piece, mut taken) = (input.piece(), 0);
                model.notified += usize::from(model.output.is_empty() && !model.active);
                // SAFETY: as many readable bytes.
                let result = unsafe { write(bio, piece.as_ptr().cast(), piece.len(), &mut taken) };
                assert_eq!((result, taken), (1, piece.len()));
                model.output.extend(piece);
            }
            9 => {
                let (vector, active) = (input.bytes(3).to_vec(), input.flag());
                let replaced = std::mem::replace(&mut model.output, vector.clone());
                let returned = io.exchange_output(vector, active);
                if active {
                    model.output.extend(replaced);
                    assert_eq!(returned, b"");
                } else {
                    assert_eq!(returned, replaced);
                }
                model.active = active;
            }
            10 => match input.byte() % 3 {
                0 => {
                    io.enable_notify();
                    model.active = false;
                }
                1 => {
                    io.begin_record();
                    model.record.clear();
                }
                _ => io.reserve_output(input.one_of(&[0, 1, 20_000, 400_000])).expect("there is memory"),
            },
            _ => {
                io.take_back();
                (loan, model.active) = (None, false);
                io.clear();
                model.input.clear();
                model.output.clear();
            }
        }
        // SAFETY: a live BIO.
        let pending = [CTRL_PENDING, CTRL_WPENDING]
            .map(|command| unsafe { ctrl(bio, command, 0, std::ptr::null_mut()) });
        assert_eq!(pending, [model.input.len() as c_long, model.output.len() as c_long]);
        assert_eq!(notified.load(Ordering::Relaxed), model.notified);
    }
    io.take_back();
    // SAFETY: the reference that was given to the BIO above.
    unsafe { destroy(bio) };
    assert_eq!(Arc::strong_count(&io), 1, "the BIO keeps its memory");
}
