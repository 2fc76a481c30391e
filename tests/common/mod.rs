//! The common setup of the runtime's tests.

use wakeloop::runtime::{Builder, Runtime};

/// Makes a runtime of each kind: current-thread, with one worker, with two workers.
pub fn runtimes() -> [Runtime; 3] {
    [Builder::new_current_thread(), Builder::new().worker_threads(1), Builder::new().worker_threads(2)]
        .map(|builder| builder.build().unwrap())
}
