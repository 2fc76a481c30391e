//! The common setup of the runtime's tests.

use wakeloop::runtime::{Builder, Runtime, testing};

/// Makes a runtime of each kind: current-thread, with one worker, with two workers, and one whose order is drawn from a
/// seed. The clocks of all run as the system's.
pub fn runtimes() -> [Runtime; 4] {
    let drawn = testing::Builder::new().seed(1).start_paused(false).inline_blocking(false);
    let builders =
        [Builder::new_current_thread(), Builder::new().worker_threads(1), Builder::new().worker_threads(2)];
    let [current_thread, one, two] = builders.map(|builder| builder.build().unwrap());
    [current_thread, one, two, drawn.build().unwrap()]
}
