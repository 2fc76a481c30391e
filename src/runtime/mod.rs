//! An async runtime for Rust futures: work-stealing workers, one driver for sockets and timers, and a pool for
//! blocking functions. It knows nothing of Python.
//!
//! ```
//! use std::time::Duration;
//! use wakeloop::runtime::{self, Runtime, time};
//!
//! let rt = Runtime::new()?;
//! let answer = rt.block_on(async {
//!     let task = runtime::spawn(async {
//!         time::sleep(Duration::from_millis(1)).await;
//!         42
//!     });
//!     task.await.unwrap()
//! });
//! assert_eq!(answer, 42);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! From the bottom up: `task` (one allocation per future), `driver` (reactor and timers), `executor` (workers),
//! then [`time`], [`net`], [`sync`], [`blocking`] for users, [`testing`] for their tests, and [`Runtime`], [`Builder`], [`Handle`] on top.
//!
//! Any thread may hold a [`Handle`] or a waker at any time, also after the runtime has ended. Sleeps and
//! sockets belong to the runtime on whose thread they were first used, and may be awaited anywhere.
//!
#![doc = include_str!("TOUR.md")]

mod block_on;
pub mod blocking;
mod builder;
mod clock;
mod condition;
mod context;
mod coop;
mod demo;
mod driver;
mod entered;
mod executor;
pub mod fs;
mod handle;
mod join_set;
mod lock;
#[doc(hidden)]
pub mod macros;
pub mod metrics;
pub mod net;
mod prefetch;
mod sampler;
mod shim;
#[cfg(all(test, wakeloop_shuttle))]
#[path = "../../tests/models/whole_runtime.rs"]
mod shuttle_model;
pub mod sync;
mod task;
#[doc(hidden)]
pub mod task_local;
pub mod testing;
mod thread_options;
pub mod time;
mod trace;
mod wakers;
mod yield_now;

pub use block_on::block_on;
pub use blocking::{BlockingPool, NoThread, spawn_blocking};
pub use builder::Builder;
pub use demo::run_demo;
pub use executor::{LocalSet, spawn_local};
pub use handle::{Handle, Runtime, spawn};
pub use join_set::JoinSet;
pub use metrics::{Histogram, Metrics, WorkerMetrics};
pub use task::{AbortHandle, JoinError, JoinHandle, TaskPanic};
pub use task_local::{NoValue, Scope, TaskLocal};
#[cfg(feature = "python")]
pub(crate) use thread_options::SignalsBlocked;
pub use trace::{TraceEvent, Tracer};
pub use yield_now::yield_now;
