//! The setting of spins: `WAKELOOP_SPIN`.

use crate::settings::{self, Value, WrongSetting};

/// Whether threads spin, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Setting {
    /// They never do.
    Off,
    /// They do where it helps, if the processors suffice.
    #[default]
    Auto,
    /// They do where it helps, for so many nanoseconds, on any machine.
    Window(u64),
}

/// How long a spin lasts at most by default, in nanoseconds.
pub(super) const WINDOW: u64 = 50_000;
impl Setting {
    /// The setting of the environment; `Auto` without one.
    pub(crate) fn from_environment() -> Result<Setting, WrongSetting> {
        Ok(match settings::SPIN.read()? {
            Some(Value::Word("off") | Value::Number(0)) => Setting::Off,
            Some(Value::Number(micros)) => Setting::Window(micros * 1_000),
            _ => Setting::Auto,
        })
    }

    /// How long a spin lasts at most, in nanoseconds. Zero if there is none.
    pub(super) fn window(self) -> u64 {
        match self {
            Setting::Off => 0,
            Setting::Auto => WINDOW,
            Setting::Window(nanos) => nanos,
        }
    }
}
