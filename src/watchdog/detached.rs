//! Reads a thread's stack, and who holds the GIL, without the GIL.
//!
//! The head of the room says what holds here.

use std::iter;
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

use super::attached;
use super::layout::{self, FreeThreaded, Layout};
use super::memory::Memory;
use super::stack::{DEEPEST, Frame, Stack};
use crate::capi::section::FREE_THREADED;
use crate::capi::threads::ident;

/// How often it is tried to read a stack.
const ATTEMPTS: usize = 5;
/// The most threads that are looked for: the list may change meanwhile, and lead anywhere.
const MOST_THREADS: usize = 10_000;

/// The layout of this interpreter, if it has passed its test.
static TESTED: OnceLock<Option<Layout>> = OnceLock::new();

/// A thread that has a state in the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// The address of its state.
    pub(crate) state: usize,
    /// `threading.get_ident()`
    pub(crate) ident: u64,
    /// `threading.get_native_id()`
    pub(crate) native_id: u64,
}

/// Who holds the GIL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Unknown,
    /// There is no GIL.
    Absent,
    Nobody,
    Thread(Thread),
}

#[derive(Debug)]
pub(crate) struct Reader {
    memory: Memory,
    layout: &'static Layout,
}

/// Finds the layout, and tests it on this thread.
pub(crate) fn prepare(py: Python<'_>) {
    TESTED.get_or_init(|| {
        let memory = Memory::open().ok()?;
        let layout = layout::find(&memory)?;
        is_right(py, &memory, &layout).then_some(layout)
    });
}

fn is_right(py: Python<'_>, memory: &Memory, layout: &Layout) -> bool {
    // SAFETY: this thread is attached.
    let state = unsafe { ffi::PyThreadState_Get() };
    let own = thread(memory, layout, state.expose_provenance());
    let holds = match holder(memory, layout) {
        Some(Holder::Thread(thread)) => Some(thread) == own,
        Some(Holder::Absent) => true,
        _ => false,
    };
    // SAFETY: this thread's own state.
    let stack = unsafe { attached::stack(py, state) };
    holds
        && own.is_some_and(|own| own.ident == ident() && threads(memory, layout).contains(&own))
        && self::stack(memory, layout, state.addr()) == Some(stack)
        && is_attached(memory, layout, state.addr()) == Some(true)
        // Without a GIL the list may change while the interpreter is asked.
        && (FREE_THREADED || threads(memory, layout).iter().all(|thread| attached::is_alive(py, thread.state)))
}

impl Reader {
    /// `None` if the layout of this interpreter is not known, or if there are no descriptors left.
    pub(crate) fn open() -> Option<Reader> {
        let layout = TESTED.get()?.as_ref()?;
        Some(Reader { memory: Memory::open().ok()?, layout })
    }

    /// The stack of a thread; `None` if it cannot be read. While the thread runs Python code, its frames may change in
    /// the middle of that. Without a GIL it often runs, so two stacks in a row shall have the same functions.
    pub(crate) fn stack(&self, thread: usize) -> Option<Stack> {
        let mut last: Option<Stack> = None;
        for _ in 0..ATTEMPTS {
            let found = stack(&self.memory, self.layout, thread).filter(|stack| !stack.is_empty());
            let Some(found) = found else { continue };
            let is_same = |last: Stack| {
                last.len() == found.len() && last.iter().zip(&found).all(|(a, b)| a.function == b.function)
            };
            if !FREE_THREADED || last.take().is_some_and(is_same) {
                return Some(found);
            }
            last = Some(found);
        }
        last
    }

    /// Is a thread attached to the interpreter, so that it runs Python code, or native code that has not released it?
    /// With a GIL only its holder is.
    pub(crate) fn is_attached(&self, thread: usize) -> bool {
        is_attached(&self.memory, self.layout, thread) == Some(true)
    }

    /// The holder of the GIL at this moment.
    pub(crate) fn holder(&self) -> Holder {
        holder(&self.memory, self.layout).unwrap_or(Holder::Unknown)
    }

    /// A thread, by the address of its state.
    pub(crate) fn thread(&self, state: usize) -> Option<Thread> {
        thread(&self.memory, self.layout, state)
    }

    /// All threads that have a state in the interpreter, the oldest first. While threads begin or end, some may be
    /// missing.
    pub(crate) fn threads(&self) -> Vec<Thread> {
        let mut found = threads(&self.memory, self.layout);
        found.reverse();
        found
    }
}

fn holder(memory: &Memory, layout: &Layout) -> Option<Holder> {
    if let Some(FreeThreaded { gil, .. }) = layout.free_threaded
        && memory.int(gil)? == 0
    {
        return Some(Holder::Absent);
    }
    match memory.int(layout.gil.locked)? {
        1 => thread(memory, layout, memory.word(layout.gil.holder)?).map(Holder::Thread),
        _ => Some(Holder::Nobody),
    }
}

fn is_attached(memory: &Memory, layout: &Layout, state: usize) -> Option<bool> {
    match layout.free_threaded {
        Some(FreeThreaded { status, .. }) => {
            Some(memory.int(state.wrapping_add(status))? & layout::ATTACHED != 0)
        }
        None => Some(matches!(holder(memory, layout)?, Holder::Thread(thread) if thread.state == state)),
    }
}

fn threads(memory: &Memory, layout: &Layout) -> Vec<Thread> {
    let next = |state: &usize| memory.word(state.wrapping_add(layout.thread.next)).filter(|next| *next != 0);
    let states = iter::successors(memory.word(layout.threads).filter(|first| *first != 0), next);
    states.take(MOST_THREADS).map_while(|state| thread(memory, layout, state)).collect()
}

fn thread(memory: &Memory, layout: &Layout, state: usize) -> Option<Thread> {
    let number = |offset| memory.word(state.wrapping_add(offset)).map(|number| number as u64);
    Some(Thread { state, ident: number(layout.thread.ident)?, native_id: number(layout.thread.native_id)? })
}

fn stack(memory: &Memory, layout: &Layout, thread: usize) -> Option<Stack> {
    let mut stack = Stack::new();
    let mut next = memory.word(thread.wrapping_add(layout.thread.frame))?;
    #[cfg(not(Py_3_13))]
    {
        next = memory.word(next.wrapping_add(layout.frame.current))?;
    }
    // Frames of the interpreter itself are not counted, so they need a limit too.
    for _ in 0..2 * DEEPEST {
        if next == 0 || stack.len() == DEEPEST {
            break;
        }
        stack.extend(frame(memory, layout, next));
        next = memory.word(next.wrapping_add(layout.frame.previous))?;
    }
    Some(stack)
}

/// A frame of Python code; `None` for the frames between a C function and the Python code that it calls.
fn frame(memory: &Memory, layout: &Layout, frame: usize) -> Option<Frame> {
    // Since 3.14 the low bits of the pointer are flags.
    let code = memory.word(frame.wrapping_add(layout.frame.code))? & !7;
    if !memory.is_of_type(code, &raw const ffi::PyCode_Type) {
        return None;
    }
    let text = |offset| memory.text(memory.word(code.wrapping_add(offset))?);
    let function = text(layout.code.name)?;
    if cfg!(not(Py_3_13)) && function == "<interpreter trampoline>" {
        return None;
    }
    let line = || {
        let first_line = memory.int(code.wrapping_add(layout.code.first_line))?;
        let table = memory.bytes(memory.word(code.wrapping_add(layout.code.lines))?)?;
        let instruction = memory.word(frame.wrapping_add(layout.frame.instruction))?;
        // Before its first instruction, a frame of 3.12 and earlier points in front of the code.
        let begin = instructions(memory, layout, frame, code)?;
        line_of(&table, first_line, instruction.saturating_sub(begin))
    };
    Some(Frame { file: text(layout.code.file)?, line: line(), function })
}

/// The address of the instructions that a frame runs.
fn instructions(memory: &Memory, layout: &Layout, frame: usize, code: usize) -> Option<usize> {
    let Some(FreeThreaded { copy, copies, .. }) = layout.free_threaded else {
        return Some(code.wrapping_add(layout.code.instructions));
    };
    let copies = memory.word(code.wrapping_add(copies))?;
    let copy = usize::try_from(memory.int(frame.wrapping_add(copy))?).ok()?;
    let is_there = copy < memory.word(copies)?;
    memory.word(copies.wrapping_add((1 + is_there.then_some(copy)?).wrapping_mul(size_of::<usize>())))
}

/// The line of the instruction at this offset in bytes, by the code object's `co_linetable`. The format is described in
/// CPython's `InternalDocs/code_objects.md`.
fn line_of(mut table: &[u8], first_line: i32, offset: usize) -> Option<i32> {
    let (mut line, mut end) = (first_line, 0);
    while let [head, tail @ ..] = table {
        let kind = head >> 3 & 15;
        line = line.wrapping_add(match kind {
            10..=12 => i32::from(kind) - 10,
            13 | 14 => signed_varint(tail),
            _ => 0,
        });
        // The length is in code units of two bytes.
        end += 2 * (usize::from(head & 7) + 1);
        if offset < end {
            return (kind != 15).then_some(line);
        }
        // Only the first byte of an entry has the high bit.
        table = tail.split_at(tail.iter().position(|byte| byte & 0x80 != 0)?).1;
    }
    None
}

fn signed_varint(bytes: &[u8]) -> i32 {
    let mut value = 0_u32;
    for (place, byte) in bytes.iter().take(6).enumerate() {
        value |= u32::from(byte & 63) << (6 * place);
        if byte & 64 == 0 {
            break;
        }
    }
    let size = (value >> 1) as i32;
    if value & 1 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_instruction_is_read_from_the_table() {
        // Two units in the first line, three of no line, one two lines below, one in the long form: 100 lines below it,
        // and one in the long form: 3 lines above that.
        let table = [0x80 | 1, 0x20, 0x80 | 15 << 3 | 2, 0x80 | 12 << 3, 5, 6]
            .into_iter()
            .chain([0x80 | 14 << 3, 64 | 8, 3, 1, 2, 3])
            .chain([0x80 | 13 << 3, 7])
            .collect::<Vec<u8>>();
        let lines: Vec<_> = (0..9).map(|unit| line_of(&table, 10, 2 * unit)).collect();
        let (first, none) = (Some(10), None);
        assert_eq!(lines, [first, first, none, none, none, Some(12), Some(112), Some(109), None]);
        assert_eq!(line_of(&[], 10, 0), None);
        assert_eq!(line_of(&[0x80, 0], 10, 2), None);
    }
}
