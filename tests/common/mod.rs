//! What several of the runtime's tests begin with.

use wakeloop::runtime::{Builder, Runtime};

/// A runtime of each kind: driven by who blocks on it, with one worker, with two.
pub fn runtimes() -> [Runtime; 3] {
    [Builder::new_current_thread(), Builder::new().worker_threads(1), Builder::new().worker_threads(2)]
        .map(|builder| builder.build().unwrap())
}
