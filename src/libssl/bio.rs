//! The BIO under a TLS connection: where its `SSL` finds what came from the peer, and leaves what goes there.
//!
//! One BIO serves both directions, in memory. What a receive has brought is lent to it for the time of one
//! batch of reads, straight from the loop's buffer ([`Io::lend`], [`Io::take_back`]); what the batch does not
//! use up is kept here. What the `SSL` writes collects in a vector, for which the loop lends its large one
//! while it encrypts ([`Io::exchange_output`]). A read gets no more than one record, whatever it has room for.
//!
//! **Who may be here.** Mostly the loop's thread with the GIL held. But the `ssl.SSLObject` belongs to the user,
//! and CPython calls OpenSSL without the GIL: so the state is behind a mutex, the callbacks neither touch
//! Python nor panic, and what arrives while the connection itself is not at work is announced by `notify`.
//!
//! **Life.** The BIO owns one reference to the [`Io`], given back by its destroy callback whenever and wherever
//! `SSL_free` runs; the connection owns another. The BIO_METHOD is static.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffers::Buffers;
use super::library::{Bio, BioMethod, CTRL_PENDING, FUNCTIONS, Functions, Library, Ssl};

const SOURCE_SINK: c_int = 0x0400;
const FLAGS_READ: c_int = 0x01;
const FLAGS_SHOULD_RETRY: c_int = 0x08;
/// Every flag of `BIO_clear_retry_flags`.
const FLAGS_RETRY: c_int = 0x0f;

const CTRL_FLUSH: c_int = 11;
const CTRL_WPENDING: c_int = 13;

/// A kept buffer larger than this is let go once it is empty: what a handshake left would stay for as long as the
/// connection does, and a client that offers a post-quantum key begins with more than this.
const KEEP: usize = 1024;

/// Tells the connection that there is output which it did not cause.
pub(crate) type Notify = Box<dyn Fn() + Send + Sync>;

/// The memory behind a BIO.
pub(crate) struct Io {
    state: Mutex<State>,
    /// How much input and output there is, for whoever asks without the lock. Written under it. Relaxed: what is
    /// read here is looked at under the lock before it is used.
    unread: AtomicUsize,
    unsent: AtomicUsize,
    notify: Notify,
    pub(super) buffers: Buffers,
}

struct State {
    /// What is lent, of which the first `taken` bytes are used up. Valid until taken back.
    lent: *const [u8],
    /// What was kept, of which the first `taken` bytes are used up. Comes before anything lent.
    kept: Vec<u8>,
    taken: usize,
    place: Place,
    output: Vec<u8>,
    /// The connection itself is at work, and will look at the output.
    attended: bool,
}

// SAFETY: the pointer is to memory that its owner keeps valid until it takes it back, under the mutex; the rest
// is owned data.
unsafe impl Send for State {}

impl State {
    /// The input that is not used up.
    fn input(&self) -> &[u8] {
        // SAFETY: lent memory is valid until it is taken back, which leaves an empty slice.
        let input = if self.kept.is_empty() { unsafe { &*self.lent } } else { &self.kept };
        &input[self.taken..]
    }

    /// How much of the input the next read gets, which has room for `size` bytes: no more than the rest of a record.
    fn next_piece(&mut self, size: usize) -> usize {
        let input = self.input();
        let input = &input[..input.len().min(size)];
        let mut place = self.place;
        let count = place.step(input);
        self.place = place;
        count
    }

    fn advance(&mut self, count: usize) {
        self.taken += count;
        if !self.kept.is_empty() && self.taken == self.kept.len() {
            self.taken = 0;
            release(&mut self.kept);
        }
    }

    /// Ends a loan, if one is open: keeps what is not used up of it.
    fn end_loan(&mut self) {
        if !self.lent.is_empty() {
            // SAFETY: lent memory is valid until it is taken back, which calls this.
            let rest = unsafe { &(&*self.lent)[self.taken..] };
            self.kept.extend_from_slice(rest);
            (self.lent, self.taken) = (&[], 0);
        }
    }

    /// Keeps `data` behind all other input. A loan may be open: while CPython turns OpenSSL's error into an exception, a
    /// finalizer or another thread can come here. The loan ends then, because its rest comes before the data.
    fn keep(&mut self, data: &[u8]) {
        self.end_loan();
        if self.taken > 0 {
            self.kept.drain(..self.taken);
            self.taken = 0;
        }
        self.kept.extend_from_slice(data);
    }
}

/// The bytes of a record's header, of which the last two are the length of what follows.
const HEADER: usize = 5;

/// Where in a TLS record the input goes on. If it is none, that only tells how much of it is given at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// So much of a header has gone by.
    header: usize,
    /// The first byte of the length, once it has.
    high: u8,
    /// So much is left of the body.
    body: usize,
}

impl Place {
    /// Goes on by as much of `input` as belongs to one record, and says how much that is: nothing only if there is
    /// no input.
    fn step(&mut self, input: &[u8]) -> usize {
        let mut count = 0;
        if self.body == 0 {
            count = input.len().min(HEADER - self.header);
            for byte in &input[..count] {
                self.header += 1;
                match self.header {
                    4 => self.high = *byte,
                    HEADER => self.body = usize::from(u16::from_be_bytes([self.high, *byte])),
                    _ => {}
                }
            }
            if self.header < HEADER {
                return count;
            }
            self.header = 0;
        }
        let rest = self.body.min(input.len() - count);
        self.body -= rest;
        count + rest
    }
}

/// Empties a vector, and gives its memory back if that is much.
fn release(vector: &mut Vec<u8>) {
    if vector.capacity() > KEEP {
        *vector = Vec::new();
    } else {
        vector.clear();
    }
}

impl Io {
    pub(crate) fn new(notify: Notify) -> Io {
        Io {
            state: Mutex::new(State {
                lent: &[],
                kept: Vec::new(),
                taken: 0,
                place: Place::default(),
                output: Vec::new(),
                attended: false,
            }),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            notify,
            buffers: Buffers::default(),
        }
    }

    /// No code of ours panics while it holds the lock; and after one that did, the vectors are whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the sizes; called at the end of whatever changes them.
    #[inline(always)]
    fn publish(&self, state: &State) {
        self.unread.store(state.input().len(), Ordering::Relaxed);
        self.unsent.store(state.output.len(), Ordering::Relaxed);
    }

    /// Lends `data` as the next input.
    ///
    /// # Safety
    /// `data` stays valid until [`Io::take_back`].
    pub(crate) unsafe fn lend(&self, data: &[u8]) {
        let mut state = self.state();
        state.attended = true;
        if state.kept.is_empty() {
            (state.lent, state.taken) = (data, 0);
        } else {
            state.keep(data);
        }
        self.publish(&state);
    }

    /// Ends a loan; what was not used up of it is kept.
    pub(crate) fn take_back(&self) {
        let mut state = self.state();
        state.attended = false;
        state.end_loan();
        self.publish(&state);
    }

    /// Keeps `data` as input for later.
    pub(crate) fn keep(&self, data: &[u8]) {
        let mut state = self.state();
        state.keep(data);
        self.publish(&state);
    }

    /// How many bytes of input are not used up.
    #[inline(always)]
    pub(crate) fn input_size(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// How many bytes of output wait.
    #[inline(always)]
    pub(crate) fn output_size(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Puts another vector in the output's place and gives the one that was there. What it held moves over.
    /// While `attended`, output causes no notification.
    pub(crate) fn exchange_output(&self, mut vector: Vec<u8>, attended: bool) -> Vec<u8> {
        let mut state = self.state();
        state.attended = attended;
        if attended && !state.output.is_empty() {
            vector.extend_from_slice(&state.output);
            release(&mut state.output);
        }
        let taken = std::mem::replace(&mut state.output, vector);
        self.publish(&state);
        taken
    }

    /// The handshake is over: what is read next is the beginning of a record.
    pub(super) fn begin_record(&self) {
        self.state().place = Place::default();
    }

    /// Runs `body`, which has OpenSSL read or write.
    #[inline(always)]
    pub(crate) fn at_work<T>(&self, body: impl FnOnce() -> T) -> T {
        self.buffers.during(body)
    }

    /// The shutdown begins: the record buffers stay as they are.
    pub(crate) fn end_records(&self) {
        self.buffers.forget();
    }

    /// From here on output is announced again.
    pub(crate) fn leave(&self) {
        self.state().attended = false;
    }

    /// Drops everything; the connection is over.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        if state.lent.is_empty() {
            state.taken = 0;
        }
        state.kept = Vec::new();
        state.output = Vec::new();
        self.publish(&state);
    }
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        write!(f, "Io({} in, {} out)", state.input().len(), state.output.len())
    }
}

impl Library {
    /// Puts `io` under `ssl`, in the place of what it read from and wrote to before.
    ///
    /// # Safety
    /// `ssl` is alive, and no other thread uses it.
    pub(crate) unsafe fn attach(&self, ssl: Ssl, io: Arc<Io>) -> bool {
        let functions = self.functions;
        // SAFETY: the method was made by this library. The BIO gets the reference that its destroy callback
        // gives back; `SSL_set_bio` takes over the one reference to a BIO that serves both directions.
        unsafe {
            let bio = (functions.BIO_new)(self.method as BioMethod);
            if bio.is_null() {
                return false;
            }
            (functions.BIO_set_data)(bio, Arc::into_raw(io).cast_mut().cast());
            (functions.BIO_set_init)(bio, 1);
            (functions.SSL_set_bio)(ssl.0, bio, bio);
        }
        true
    }
}

/// The [`Io`] of a BIO, for the time of a callback, and the functions that the callback needs: it is given nothing but
/// the BIO.
///
/// # Safety
/// `bio` is one of ours.
unsafe fn io_of<'a>(bio: Bio) -> Option<(&'a Io, &'static Functions)> {
    let functions = FUNCTIONS.get()?;
    // SAFETY: the data of our BIO is null or an `Arc` that it owns, which OpenSSL keeps during a callback.
    unsafe { (functions.BIO_get_data)(bio).cast::<Io>().as_ref() }.map(|io| (io, functions))
}

unsafe extern "C" fn read(bio: Bio, target: *mut c_char, size: usize, got: *mut usize) -> c_int {
    // SAFETY: OpenSSL's call for a BIO of ours.
    let Some((io, functions)) = (unsafe { io_of(bio) }) else { return 0 };
    let mut state = io.state();
    let count = state.next_piece(size);
    if count == 0 {
        drop(state);
        // SAFETY: as above.
        unsafe { (functions.BIO_set_flags)(bio, FLAGS_READ | FLAGS_SHOULD_RETRY) };
        return 0;
    }
    // SAFETY: OpenSSL gives room for `size` bytes, of which `count` is no more, and a place for the count.
    unsafe {
        std::ptr::copy_nonoverlapping(state.input().as_ptr(), target.cast(), count);
        *got = count;
        (functions.BIO_clear_flags)(bio, FLAGS_RETRY);
    }
    state.advance(count);
    io.publish(&state);
    1
}

unsafe extern "C" fn write(bio: Bio, source: *const c_char, size: usize, taken: *mut usize) -> c_int {
    // SAFETY: OpenSSL's call for a BIO of ours.
    let Some((io, functions)) = (unsafe { io_of(bio) }) else { return 0 };
    let notify = {
        let mut state = io.state();
        let first = state.output.is_empty();
        // SAFETY: OpenSSL gives `size` bytes.
        state.output.extend_from_slice(unsafe { std::slice::from_raw_parts(source.cast(), size) });
        io.publish(&state);
        first && !state.attended
    };
    if notify {
        (io.notify)();
    }
    // SAFETY: as above; OpenSSL gives a place for the count.
    unsafe {
        (functions.BIO_clear_flags)(bio, FLAGS_RETRY);
        *taken = size;
    }
    1
}

unsafe extern "C" fn ctrl(bio: Bio, command: c_int, _: c_long, _: *mut c_void) -> c_long {
    match command {
        CTRL_FLUSH => 1,
        CTRL_PENDING | CTRL_WPENDING => {
            // SAFETY: OpenSSL's call for a BIO of ours.
            let Some((io, _)) = (unsafe { io_of(bio) }) else { return 0 };
            let size = if command == CTRL_PENDING { io.input_size() } else { io.output_size() };
            size as c_long
        }
        // Among them the question for the end of the input, of which the transport knows, and the offers of the kernel's
        // TLS, which OpenSSL repeats for every record.
        _ => 0,
    }
}

unsafe extern "C" fn destroy(bio: Bio) -> c_int {
    // SAFETY: OpenSSL's last call for a BIO of ours: the reference that `attach` gave is given back.
    if let Some((io, _)) = unsafe { io_of(bio) } {
        io.buffers.forget();
        // SAFETY: as above.
        drop(unsafe { Arc::from_raw(io) });
    }
    1
}

/// Makes the BIO_METHOD. Called once.
pub(super) fn make_method(functions: &Functions) -> Result<BioMethod, String> {
    // SAFETY: the callbacks are functions of this library, which is never unloaded; so is the name.
    unsafe {
        let kind = (functions.BIO_get_new_index)();
        let method = (functions.BIO_meth_new)(kind | SOURCE_SINK, c"wakeloop".as_ptr());
        if kind < 0 || method.is_null() {
            return Err("no BIO type is left".to_owned());
        }
        (functions.BIO_meth_set_read_ex)(method, read);
        (functions.BIO_meth_set_write_ex)(method, write);
        (functions.BIO_meth_set_ctrl)(method, ctrl);
        (functions.BIO_meth_set_destroy)(method, destroy);
        Ok(method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` bytes of the input, as OpenSSL does.
    fn taken(io: &Io, count: usize) -> Vec<u8> {
        let mut state = io.state();
        let bytes = state.input()[..count].to_vec();
        state.advance(count);
        io.publish(&state);
        bytes
    }

    #[test]
    fn what_is_kept_while_a_loan_is_open_comes_after_the_loan() {
        for used in 0..=4 {
            let io = Io::new(Box::new(|| ()));
            let lent = b"lent".to_vec();
            // SAFETY: taken back below.
            unsafe { io.lend(&lent) };
            let mut seen = taken(&io, used);
            io.keep(b" and kept");
            assert_eq!(io.input_size(), 13 - used);
            io.take_back();
            drop(lent);
            io.keep(b", twice");
            seen.extend(taken(&io, io.input_size()));
            assert_eq!(seen, b"lent and kept, twice");
        }
    }

    #[test]
    fn the_rest_of_a_loan_is_kept() {
        let io = Io::new(Box::new(|| ()));
        for (used, kept) in [(4, 0), (1, 3), (0, 7)] {
            // SAFETY: static memory.
            unsafe { io.lend(b"lent") };
            taken(&io, used);
            io.take_back();
            assert_eq!(io.input_size(), kept);
        }
    }

    fn record(length: u16) -> Vec<u8> {
        let mut record = vec![23, 3, 3];
        record.extend(length.to_be_bytes());
        record.resize(HEADER + usize::from(length), 0xff);
        record
    }

    /// The sizes of the steps through `input`, of which `arrives` bytes come at a time.
    fn steps(input: &[u8], arrives: usize) -> Vec<usize> {
        let mut place = Place::default();
        let mut steps = Vec::new();
        for mut piece in input.chunks(arrives) {
            while !piece.is_empty() {
                let count = place.step(piece);
                assert!(count > 0 && count <= piece.len());
                piece = &piece[count..];
                steps.push(count);
            }
        }
        assert_eq!(place, Place { high: place.high, ..Place::default() });
        steps
    }

    #[test]
    fn a_step_is_a_record() {
        let lengths = [0, 1, 17, 16_640, 0, 0, 300];
        let input: Vec<u8> = lengths.iter().copied().flat_map(record).collect();
        let whole: Vec<usize> = lengths.iter().map(|length| HEADER + usize::from(*length)).collect();
        assert_eq!(steps(&input, input.len()), whole);
    }

    #[test]
    fn no_step_goes_beyond_a_record_however_it_arrives() {
        let lengths = [3, 0, 300, 1];
        let input: Vec<u8> = lengths.iter().copied().flat_map(record).collect();
        for arrives in 1..input.len() {
            let mut ends: Vec<usize> = steps(&input, arrives)
                .iter()
                .scan(0, |end, count| {
                    *end += count;
                    Some(*end)
                })
                .collect();
            ends.retain(|end| end % arrives != 0);
            let mut end = 0;
            for length in lengths {
                end += HEADER + usize::from(length);
                ends.retain(|each| *each != end);
            }
            assert!(ends.is_empty(), "{arrives} at a time: {ends:?}");
        }
    }
}
