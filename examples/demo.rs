//! Two tasks that sleep, and each step that the scheduler takes with them.
//!
//! `cargo run --example demo --no-default-features`

fn main() -> std::io::Result<()> {
    wakeloop::runtime::run_demo(&mut std::io::stdout().lock())
}
