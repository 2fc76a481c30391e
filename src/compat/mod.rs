//! The one room that answers "is asyncio as we know it?".
//!
//! Native code stands in for methods of asyncio's. Debuggers, tracers, test clocks, mocks and libraries such as
//! nest_asyncio put functions of their own in the place of these methods, and expect every loop to call them. So the rest
//! of the crate asks here, by class or by function, and leaves the work to asyncio's code, or to the patch, if the answer
//! is no.
//!
//! | question | answered by | what it costs |
//! |---|---|---|
//! | is a class, or an instance of it, unpatched? | [`Class`] | a comparison of the class's version tag, and of a code object per function |
//! | is a function unpatched? | [`Function`] | a lookup; of a module's function a comparison while the module is unchanged |
//! | do tracers want to see callbacks and tasks? | [`patches`] | asked when a loop begins to run |
//! | has a test replaced the loop's clock? | [`clock`] | asked when the class or the `time` module has changed |
//! | has a program patched what asyncio's transports have? | [`transports`] | as for a class |
//!
//! Python asks through `_core.unpatched`, which makes a question of classes and modules; `wakeloop._compat` has them all.
//! What CPython's version changes is in [`version`]; [`descriptor`] reads the descriptors of Python's sockets and files.
//!
//! Invariants:
//! - Only a function that asyncio, another package of the standard library or wakeloop has defined counts as an
//!   original. A patch that is older than the import of wakeloop is a patch like any other.
//! - A patch counts from when it is made, and no longer when it is taken back.
//! - Asking runs no Python code, except where a function says so.
//!
//! Everything here needs the GIL.

mod class;
pub(crate) mod clock;
pub(crate) mod descriptor;
mod function;
mod inline_values;
mod module_name;
mod original;
pub(crate) mod patches;
pub(crate) mod python;
pub(crate) mod transports;
pub(crate) mod version;

pub(crate) use class::Class;
pub(crate) use function::Function;
