//! Two tasks that sleep, and what the scheduler does with them.
//!
//! `cargo run --example demo --no-default-features`

fn main() -> std::io::Result<()> {
    wakeloop::runtime::run_demo(&mut std::io::stdout().lock())
}
