//! Where CPython keeps a thread's stack, and the holder of the GIL.
//!
//! Since 3.13 the interpreter publishes these offsets for tools that read its memory: `_Py_DebugOffsets`, at the
//! beginning of `_PyRuntime`. For 3.11 and 3.12, which do not change any more, they are written down here. They are
//! those of 64-bit systems; on another one the test of `detached.rs` fails, and the layout is not used.

use pyo3::ffi;

use super::memory::Memory;

/// Offsets in bytes.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) thread: Thread,
    pub(super) frame: Frame,
    pub(super) code: Code,
    pub(super) gil: Gil,
    pub(super) free_threaded: Option<FreeThreaded>,
    /// The address at which the interpreter has its first thread state.
    pub(super) threads: usize,
}

/// In a thread state.
#[derive(Debug)]
pub(super) struct Thread {
    /// The next thread state of the interpreter.
    pub(super) next: usize,
    /// The first frame. Before 3.13: a struct that has it at `Frame::current`.
    pub(super) frame: usize,
    pub(super) ident: usize,
    pub(super) native_id: usize,
}

/// In a frame.
#[derive(Debug)]
pub(super) struct Frame {
    /// See `Thread::frame`.
    #[cfg(not(Py_3_13))]
    pub(super) current: usize,
    pub(super) previous: usize,
    pub(super) code: usize,
    pub(super) instruction: usize,
}

/// In a code object.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) file: usize,
    pub(super) name: usize,
    pub(super) lines: usize,
    pub(super) first_line: usize,
    pub(super) instructions: usize,
}

/// The GIL's addresses.
#[derive(Debug)]
pub(super) struct Gil {
    /// The thread state of the last holder.
    pub(super) holder: usize,
    /// An `int`: whether somebody has it.
    pub(super) locked: usize,
}

/// Offsets that free-threaded builds have beside the others.
#[derive(Debug)]
pub(super) struct FreeThreaded {
    /// The address of an `int`: whether there is a GIL.
    pub(super) gil: usize,
    /// In a thread state: an `int` whose bit [`ATTACHED`] says whether the thread is attached to the interpreter.
    pub(super) status: usize,
    /// In a frame: an `int`, which of its code object's copies of the instructions it runs. Each thread has one.
    pub(super) copy: usize,
    /// In a code object: the copies, an array of pointers behind its size.
    pub(super) copies: usize,
}

/// A bit of [`FreeThreaded::status`], `_status.active`.
pub(super) const ATTACHED: i32 = 1 << 4;

/// The address of `_PyRuntime`.
#[cfg(any(not(Py_3_12), all(Py_3_13, not(Py_3_16))))]
fn runtime() -> Option<usize> {
    // SAFETY: the name ends with NUL.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_PyRuntime".as_ptr()) };
    (!address.is_null()).then(|| address.expose_provenance())
}

/// The address of the main interpreter, which is the only one that can import this package.
fn interpreter() -> usize {
    // SAFETY: the interpreter is initialised.
    unsafe { ffi::PyInterpreterState_Main() }.expose_provenance()
}

cfg_select! {
    Py_3_16 => {
        /// This version is not known.
        pub(super) fn find(_memory: &Memory) -> Option<Layout> {
            None
        }
    }
    Py_3_13 => {
        /// The layout of this interpreter, as it says itself. It has to be tested.
        pub(super) fn find(memory: &Memory) -> Option<Layout> {
            const COOKIE: usize = usize::from_ne_bytes(*b"xdebugpy");
            // The places of the structs in `_Py_DebugOffsets`, in words.
            let (holder, thread, id, frame, code) = cfg_select! {
                Py_3_15 => { (19, 26, 30, 40, 48) }
                Py_3_14 => { (19, 26, 27, 32, 40) }
                _ => { (18, 23, 24, 29, 35) }
            };
            let runtime = runtime().filter(|runtime| memory.word(*runtime) == Some(COOKIE))?;
            let offset = |place: usize| memory.word(runtime + place * size_of::<usize>());
            Some(Layout {
                thread: Thread {
                    next: offset(thread - 2)?,
                    frame: offset(thread)?,
                    ident: offset(id)?,
                    native_id: offset(id + 1)?,
                },
                frame: Frame { previous: offset(frame)?, code: offset(frame + 1)?, instruction: offset(frame + 2)? },
                code: Code {
                    file: offset(code)?,
                    name: offset(code + 2)?,
                    lines: offset(code + 3)?,
                    first_line: offset(code + 4)?,
                    instructions: offset(code + 8)?,
                },
                gil: Gil { holder: interpreter() + offset(holder)?, locked: interpreter() + offset(holder - 1)? },
                free_threaded: match offset(2)? {
                    0 => None,
                    _ => Some(FreeThreaded {
                        // This one counts from the struct that the first one leads to.
                        gil: interpreter() + offset(holder - 3)? + offset(holder - 2)?,
                        status: offset(id + 3)?,
                        copy: offset(frame + 6)?,
                        copies: offset(code + 9)?,
                    }),
                },
                threads: interpreter() + offset(9)?,
            })
        }
    }
    Py_3_12 => {
        /// The layout of 3.12. It has to be tested.
        pub(super) fn find(memory: &Memory) -> Option<Layout> {
            let gil = memory.word(interpreter() + 384)?;
            Some(Layout {
                thread: Thread { next: 8, frame: 56, ident: 136, native_id: 144 },
                frame: Frame { current: 0, previous: 8, code: 0, instruction: 56 },
                code: Code { file: 112, name: 128, lines: 136, first_line: 68, instructions: 192 },
                gil: Gil { holder: gil + 8, locked: gil + 16 },
                free_threaded: None,
                threads: interpreter() + 72,
            })
        }
    }
    _ => {
        /// The layout of 3.11. It has to be tested.
        pub(super) fn find(_memory: &Memory) -> Option<Layout> {
            let gil = runtime()? + 360;
            Some(Layout {
                thread: Thread { next: 8, frame: 56, ident: 152, native_id: 160 },
                frame: Frame { current: 8, previous: 48, code: 32, instruction: 56 },
                code: Code { file: 112, name: 128, lines: 136, first_line: 72, instructions: 184 },
                gil: Gil { holder: gil + 8, locked: gil + 16 },
                free_threaded: None,
                threads: interpreter() + 16,
            })
        }
    }
}
