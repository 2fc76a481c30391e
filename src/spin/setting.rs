//! The setting of spins: `WAKELOOP_SPIN`.

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
/// The longest window in microseconds: beyond it, sleeping costs less in any case.
const LONGEST: u64 = 1_000;

impl Setting {
    /// The setting of the environment: `Auto` without one, and `None` for one that means nothing.
    pub(crate) fn from_environment() -> Option<Setting> {
        match std::env::var_os("WAKELOOP_SPIN") {
            None => Some(Setting::Auto),
            Some(text) => text.to_str().and_then(Setting::parse),
        }
    }

    /// How long a spin lasts at most, in nanoseconds. Zero if there is none.
    pub(super) fn window(self) -> u64 {
        match self {
            Setting::Off => 0,
            Setting::Auto => WINDOW,
            Setting::Window(nanos) => nanos,
        }
    }

    /// `off`, `auto` or microseconds. `None` if the text is nothing of these.
    fn parse(text: &str) -> Option<Setting> {
        match text.trim() {
            "" | "auto" => Some(Setting::Auto),
            "off" | "0" => Some(Setting::Off),
            number => match number.parse::<u64>() {
                Ok(micros) if micros <= LONGEST => Some(Setting::Window(micros * 1_000)),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_word_or_microseconds() {
        assert_eq!(Setting::parse("off"), Some(Setting::Off));
        assert_eq!(Setting::parse("0"), Some(Setting::Off));
        assert_eq!(Setting::parse(" auto "), Some(Setting::Auto));
        assert_eq!(Setting::parse(""), Some(Setting::Auto));
        assert_eq!(Setting::parse("20"), Some(Setting::Window(20_000)));
        for wrong in ["on", "-1", "1001", "20us", "1.5", "18446744073709551617"] {
            assert_eq!(Setting::parse(wrong), None, "{wrong}");
        }
    }
}
