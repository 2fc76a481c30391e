//! The memory BIO of a TLS connection: its `SSL` reads ciphertext from it and writes ciphertext to it.
//!
//! One BIO serves both directions.
//! - Input: [`Io::lend`] lends the bytes of one receive, without a copy. [`Io::take_back`] ends the loan, and copies
//!   the bytes that the `SSL` has not read to a vector.
//! - Output: the `SSL` appends to a vector. While the connection encrypts, that is the loop's large scratch vector
//!   ([`Io::exchange_output`]).
//! - A read returns at most one TLS record, however much room the caller has.
//!
//! **Threads.** Usually the loop's thread calls, with the GIL held. But programs can use the `ssl.SSLObject` too, and
//! CPython calls OpenSSL without the GIL. So the state is behind a mutex, and the callbacks neither use Python nor
//! panic. If the `SSL` writes while the connection is not calling it, the callback calls `notify`.
//!
//! **Ownership.** The BIO owns one reference to the [`Io`]. The destroy callback drops it when `SSL_free` runs, on any
//! thread. The connection owns another reference. The BIO_METHOD is static.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::buffers::Buffers;
use super::library::{Bio, BioMethod, CTRL_PENDING, FUNCTIONS, Functions, Library, Ssl};
use crate::memory;
use crate::poison::unpoisoned;

const SOURCE_SINK: c_int = 0x0400;
const FLAGS_READ: c_int = 0x01;
const FLAGS_SHOULD_RETRY: c_int = 0x08;
/// Every flag of `BIO_clear_retry_flags`.
const FLAGS_RETRY: c_int = 0x0f;

const CTRL_FLUSH: c_int = 11;
const CTRL_WPENDING: c_int = 13;

/// An empty vector with more capacity than this is freed. Otherwise the memory of the handshake would stay as long as
/// the connection: with a post-quantum key share, the first message alone is larger than this.
const MAX_IDLE_CAPACITY: usize = 1024;

/// Notifies the connection of output that the `SSL` wrote although the connection did not call it.
pub(crate) type Notify = Box<dyn Fn() + Send + Sync>;

/// The memory behind a BIO.
pub(crate) struct Io {
    state: Mutex<BioState>,
    /// The sizes of the input and of the output, for reading without the lock. Written with the lock held. Relaxed: the
    /// code that uses the bytes takes the lock first.
    unread: AtomicUsize,
    unsent: AtomicUsize,
    notify: Notify,
    pub(super) buffers: Buffers,
}

struct BioState {
    /// Borrowed input, valid until [`Io::take_back`]. If `kept` is empty, its first `taken` bytes have been read.
    lent: *const [u8],
    /// Owned input. If it is not empty, nothing is lent, and its first `taken` bytes have been read.
    kept: Vec<u8>,
    taken: usize,
    position: RecordPosition,
    output: Vec<u8>,
    /// The connection is calling OpenSSL, and will look at the output itself. So no notification is needed.
    connection_active: bool,
}

// SAFETY: `lent` points to memory that the caller of `Io::lend` keeps valid until `Io::take_back`, and it is read only
// under the mutex. The other fields are owned data.
unsafe impl Send for BioState {}

impl BioState {
    /// The input that has not been read yet.
    fn input(&self) -> &[u8] {
        // SAFETY: lent memory is valid until the loan ends, and the end of the loan leaves an empty slice here.
        let input = if self.kept.is_empty() { unsafe { &*self.lent } } else { &self.kept };
        &input[self.taken..]
    }

    /// How many bytes the next read gets if it has room for `size` bytes: at most the rest of the current record.
    fn next_piece(&mut self, size: usize) -> usize {
        let input = self.input();
        let input = &input[..input.len().min(size)];
        let mut position = self.position;
        let count = position.step(input);
        self.position = position;
        count
    }

    fn advance(&mut self, count: usize) {
        self.taken += count;
        if !self.kept.is_empty() && self.taken == self.kept.len() {
            self.taken = 0;
            release(&mut self.kept);
        }
    }

    /// Ends the loan, if one is open. Keeps its unread bytes.
    fn end_loan(&mut self) {
        if !self.lent.is_empty() {
            // SAFETY: lent memory is valid until `Io::take_back`, which calls this function.
            let rest = unsafe { &(&*self.lent)[self.taken..] };
            self.kept.extend_from_slice(rest);
            (self.lent, self.taken) = (&[], 0);
        }
    }

    /// Appends `data` to the input. A loan may be open: while CPython turns OpenSSL's error into an exception, a
    /// finalizer or another thread can call this. That ends the loan, because its unread bytes come before `data`.
    fn append(&mut self, data: &[u8]) {
        self.end_loan();
        if self.taken > 0 {
            self.kept.drain(..self.taken);
            self.taken = 0;
        }
        self.kept.extend_from_slice(data);
    }
}

/// The size of a TLS record's header. Its last two bytes are the length of the body.
const HEADER: usize = 5;

/// The position of the input within a TLS record. It only decides how many bytes a read gets. So input that is not TLS
/// is cut in odd pieces, but nothing is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecordPosition {
    /// How many bytes of the header have been read.
    header: usize,
    /// The high byte of the length, after four bytes of the header.
    high: u8,
    /// How many bytes of the body have not been read.
    body: usize,
}

impl RecordPosition {
    /// Advances by the bytes of `input` that belong to the current record, and returns their number. It is 0 only if
    /// the input is empty.
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

/// Up to this size, output needs no check: a program cannot choose how many connections have so much.
const SMALL_OUTPUT: usize = 256 * 1024;
/// At least what a record is longer than its plaintext.
const RECORD_OVERHEAD: usize = 512;

/// Empties a vector, and frees its memory if it is large.
fn release(vector: &mut Vec<u8>) {
    if vector.capacity() > MAX_IDLE_CAPACITY {
        *vector = Vec::new();
    } else {
        vector.clear();
    }
}

impl Io {
    pub(crate) fn new(notify: Notify) -> Io {
        Io {
            state: Mutex::new(BioState {
                lent: &[],
                kept: Vec::new(),
                taken: 0,
                position: RecordPosition::default(),
                output: Vec::new(),
                connection_active: false,
            }),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            notify,
            buffers: Buffers::default(),
        }
    }

    /// Locks the state. A poisoned lock is ignored: no code panics half-way through a change of the state.
    fn state(&self) -> MutexGuard<'_, BioState> {
        unpoisoned(self.state.lock())
    }

    /// Publishes the sizes. Every function that changes them calls this at its end.
    #[inline(always)]
    fn publish(&self, state: &BioState) {
        self.unread.store(state.input().len(), Ordering::Relaxed);
        self.unsent.store(state.output.len(), Ordering::Relaxed);
    }

    /// Lends `data` as the next input.
    ///
    /// # Safety
    /// `data` stays valid until [`Io::take_back`].
    pub(crate) unsafe fn lend(&self, data: &[u8]) {
        let mut state = self.state();
        state.connection_active = true;
        if state.kept.is_empty() {
            (state.lent, state.taken) = (data, 0);
        } else {
            state.append(data);
        }
        self.publish(&state);
    }

    /// Ends the loan. Keeps its unread bytes.
    pub(crate) fn take_back(&self) {
        let mut state = self.state();
        state.connection_active = false;
        state.end_loan();
        self.publish(&state);
    }

    /// Appends `data` to the input.
    pub(crate) fn append(&self, data: &[u8]) {
        let mut state = self.state();
        state.append(data);
        self.publish(&state);
    }

    /// How many bytes of input have not been read.
    #[inline(always)]
    pub(crate) fn input_size(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// How many bytes of output there are.
    #[inline(always)]
    pub(crate) fn output_size(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Makes room for the records of so many bytes of plaintext, which OpenSSL writes without a way to fail.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn reserve_output(&self, size: usize) -> std::io::Result<()> {
        if self.output_size() + size <= SMALL_OUTPUT {
            return Ok(());
        }
        // A record holds 16 KiB of plaintext.
        memory::grow(&mut self.state().output, size + (size / (16 * 1024) + 1) * RECORD_OVERHEAD)
    }

    /// Makes `vector` the output, and returns the previous output vector. With `connection_active`, the previous bytes
    /// are copied to `vector` first, and later output causes no notification until [`Io::enable_notify`].
    pub(crate) fn exchange_output(&self, mut vector: Vec<u8>, connection_active: bool) -> Vec<u8> {
        let mut state = self.state();
        state.connection_active = connection_active;
        if connection_active && !state.output.is_empty() {
            vector.extend_from_slice(&state.output);
            release(&mut state.output);
        }
        let taken = std::mem::replace(&mut state.output, vector);
        self.publish(&state);
        taken
    }

    /// After the handshake: the next input is the beginning of a record.
    pub(super) fn begin_record(&self) {
        self.state().position = RecordPosition::default();
    }

    /// Runs `body`, in which OpenSSL reads or writes.
    #[inline(always)]
    pub(crate) fn call_openssl<T>(&self, body: impl FnOnce() -> T) -> T {
        self.buffers.call_openssl(body)
    }

    /// The TLS shutdown begins. From now on the record buffers stay as they are.
    pub(crate) fn end_records(&self) {
        self.buffers.forget();
    }

    /// From now on output causes notifications again.
    pub(crate) fn enable_notify(&self) {
        self.state().connection_active = false;
    }

    /// Drops all owned bytes, because the connection is closed.
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
    /// Makes `io` the BIO of `ssl`, for both directions. The previous BIOs are freed.
    ///
    /// # Safety
    /// `ssl` is alive, and no other thread uses it.
    pub(crate) unsafe fn attach(&self, ssl: Ssl, io: Arc<Io>) -> bool {
        let functions = self.functions;
        // SAFETY: the method was made by this library. The BIO gets a reference, which its destroy callback drops.
        // `SSL_set_bio` takes ownership of the BIO; one reference is enough if both directions have the same BIO.
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

/// The [`Io`] of a BIO during a callback, and OpenSSL's functions.
///
/// # Safety
/// `bio` was made by [`Library::attach`], and OpenSSL has called a callback with it.
unsafe fn io_of<'a>(bio: Bio) -> Option<(&'a Io, &'static Functions)> {
    let functions = FUNCTIONS.get()?;
    // SAFETY: the BIO's data is null, or comes from an `Arc` that the BIO owns. OpenSSL does not free a BIO during a
    // callback.
    unsafe { (functions.BIO_get_data)(bio).cast::<Io>().as_ref() }.map(|io| (io, functions))
}

unsafe extern "C" fn read(bio: Bio, target: *mut c_char, size: usize, got: *mut usize) -> c_int {
    // SAFETY: OpenSSL calls this for BIOs of `make_method` only.
    let Some((io, functions)) = (unsafe { io_of(bio) }) else { return 0 };
    let mut state = io.state();
    let count = state.next_piece(size);
    if count == 0 {
        drop(state);
        // SAFETY: OpenSSL calls this with a live BIO.
        unsafe { (functions.BIO_set_flags)(bio, FLAGS_READ | FLAGS_SHOULD_RETRY) };
        return 0;
    }
    // SAFETY: OpenSSL passes room for `size` bytes, `count` is at most that, and `got` is valid for a write.
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
    // SAFETY: OpenSSL calls this for BIOs of `make_method` only.
    let Some((io, functions)) = (unsafe { io_of(bio) }) else { return 0 };
    let notify = {
        let mut state = io.state();
        let first = state.output.is_empty();
        // SAFETY: OpenSSL passes `size` readable bytes.
        state.output.extend_from_slice(unsafe { std::slice::from_raw_parts(source.cast(), size) });
        io.publish(&state);
        first && !state.connection_active
    };
    if notify {
        (io.notify)();
    }
    // SAFETY: OpenSSL calls this with a live BIO, and `taken` is valid for a write.
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
            // SAFETY: OpenSSL calls this for BIOs of `make_method` only.
            let Some((io, _)) = (unsafe { io_of(bio) }) else { return 0 };
            let size = if command == CTRL_PENDING { io.input_size() } else { io.output_size() };
            size as c_long
        }
        // Other commands are not supported. Two of them are frequent: whether the input has ended, which the transport
        // knows, and whether to use the kernel's TLS, which OpenSSL asks for every record.
        _ => 0,
    }
}

unsafe extern "C" fn destroy(bio: Bio) -> c_int {
    // SAFETY: OpenSSL calls this for BIOs of `make_method` only, once for each, as the last callback.
    if let Some((io, _)) = unsafe { io_of(bio) } {
        io.buffers.forget();
        // SAFETY: the reference is the one that `attach` gave to the BIO.
        drop(unsafe { Arc::from_raw(io) });
    }
    1
}

/// Makes the BIO_METHOD. Called once.
pub(super) fn make_method(functions: &Functions) -> Result<BioMethod, String> {
    // SAFETY: the callbacks and the name are part of this library, which is never unloaded.
    unsafe {
        let kind = (functions.BIO_get_new_index)();
        let method = (functions.BIO_meth_new)(kind | SOURCE_SINK, c"wakeloop".as_ptr());
        if kind < 0 || method.is_null() {
            return Err("OpenSSL has no free BIO type".to_owned());
        }
        (functions.BIO_meth_set_read_ex)(method, read);
        (functions.BIO_meth_set_write_ex)(method, write);
        (functions.BIO_meth_set_ctrl)(method, ctrl);
        (functions.BIO_meth_set_destroy)(method, destroy);
        Ok(method)
    }
}

#[cfg(wakeloop_fuzz)]
#[path = "../../tests/fuzz/targets/bio.rs"]
pub(crate) mod fuzz;

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
    fn data_appended_during_a_loan_comes_after_the_loan() {
        for used in 0..=4 {
            let io = Io::new(Box::new(|| ()));
            let lent = b"lent".to_vec();
            // SAFETY: taken back below.
            unsafe { io.lend(&lent) };
            let mut seen = taken(&io, used);
            io.append(b" and kept");
            assert_eq!(io.input_size(), 13 - used);
            io.take_back();
            drop(lent);
            io.append(b", twice");
            seen.extend(taken(&io, io.input_size()));
            assert_eq!(seen, b"lent and kept, twice");
        }
    }

    #[test]
    fn the_unread_rest_of_a_loan_is_kept() {
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

    /// The sizes of the steps through `input`, which arrives in pieces of `arrives` bytes.
    fn steps(input: &[u8], arrives: usize) -> Vec<usize> {
        let mut position = RecordPosition::default();
        let mut steps = Vec::new();
        for mut piece in input.chunks(arrives) {
            while !piece.is_empty() {
                let count = position.step(piece);
                assert!(count > 0 && count <= piece.len());
                piece = &piece[count..];
                steps.push(count);
            }
        }
        assert_eq!(position, RecordPosition { high: position.high, ..RecordPosition::default() });
        steps
    }

    /// Where steps of these sizes end.
    fn ends(steps: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut end = 0;
        let add = |size| {
            end += size;
            end
        };
        steps.into_iter().map(add).collect()
    }

    #[test]
    fn a_step_advances_by_one_record() {
        let lengths = [0, 1, 17, 16_640, 0, 0, 300];
        let input: Vec<u8> = lengths.iter().copied().flat_map(record).collect();
        let whole: Vec<usize> = lengths.iter().map(|length| HEADER + usize::from(*length)).collect();
        assert_eq!(steps(&input, input.len()), whole);
    }

    #[test]
    fn no_step_crosses_the_end_of_a_record() {
        let lengths = [3, 0, 300, 1];
        let input: Vec<u8> = lengths.iter().copied().flat_map(record).collect();
        let records = ends(lengths.map(|length| HEADER + usize::from(length)));
        for arrives in 1..input.len() {
            let mut crossing = ends(steps(&input, arrives));
            crossing.retain(|end| end % arrives != 0 && !records.contains(end));
            assert!(crossing.is_empty(), "{arrives} at a time: {crossing:?}");
        }
    }
}
