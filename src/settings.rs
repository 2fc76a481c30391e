//! The environment variables of wakeloop: the table of them, and the one way in which they are read.
//!
//! - A variable that is empty, or white space, is not set.
//! - White space around a value does not count, and the case of its letters does not, except in a path.
//! - Any other value than those that the table allows is a [`WrongSetting`]. The loop and the runtime read the variables
//!   when they are made, so that a wrong value is an error there, and not later.
//! - [`ignore`] switches all of them off: `python -E` and `python -I`.
//!
//! `docs/reference/environment.md` says what each of them does. Two variables act before this module is loaded:
//! `WAKELOOP_GIL` in `wakeloop/_gil.py`, and `WAKELOOP` and `WAKELOOP_REPORT` in `_wakeloop_startup.py`.

#[cfg(all(feature = "python", target_os = "linux"))]
use std::ffi::CStr;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The largest number of worker threads of a runtime.
pub(crate) const MAX_WORKERS: usize = 1024;
/// The longest spin in microseconds: beyond it, sleeping costs less in any case.
const LONGEST_SPIN: u64 = 1_000;

/// A variable.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    kind: Kind,
    /// The allowed values, in words.
    allowed: &'static str,
}

#[derive(Debug)]
enum Kind {
    /// `0` or `1`.
    Switch,
    Word(&'static [&'static str]),
    /// A time above zero; `off` or `0` for none.
    Time,
    /// A number of this range, or one of these words.
    Number(u64, u64, &'static [&'static str]),
    Signal,
    Path,
    /// `0` or `1`, `unix:PATH` or `HOST:PORT`.
    Address,
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Switch(bool),
    Word(&'static str),
    /// Seconds; infinity for `off`.
    Time(f64),
    Number(u64),
    Path(OsString),
}

const fn variable(name: &'static str, kind: Kind, allowed: &'static str) -> Variable {
    Variable { name, kind, allowed }
}

const SWITCH: &str = "0 or 1";
const TIME: &str = "a time such as 100ms, 0.1 or 1s, or off";

/// How many worker threads the runtime has at most.
pub(crate) const WORKERS: Variable =
    variable("WAKELOOP_WORKERS", Kind::Number(1, MAX_WORKERS as u64, &[]), "a number from 1 to 1024");
/// Whether waits begin with a spin, and for how many microseconds.
pub(crate) const SPIN: Variable = variable(
    "WAKELOOP_SPIN",
    Kind::Number(0, LONGEST_SPIN, &["auto", "off"]),
    "off, auto or microseconds up to 1000",
);
/// The seed that `testing::explore` runs alone.
pub(crate) const SEED: Variable =
    variable("WAKELOOP_SEED", Kind::Number(0, u64::MAX, &[]), "a number below 2**64");

/// The variables that Python code reads.
const PYTHON: &[Variable] = &[
    variable("WAKELOOP", Kind::Switch, SWITCH),
    variable("WAKELOOP_REPORT", Kind::Switch, SWITCH),
    variable("WAKELOOP_GIL", Kind::Switch, SWITCH),
    variable(
        "WAKELOOP_TLS",
        Kind::Word(&["native", "sslobject", "asyncio", "auto"]),
        "native, sslobject, asyncio or auto",
    ),
    variable("WAKELOOP_WATCHDOG", Kind::Time, TIME),
    variable("WAKELOOP_SLOW_TURN", Kind::Time, TIME),
    variable("WAKELOOP_ADMIN", Kind::Address, "0, 1, unix:PATH or HOST:PORT"),
    variable("WAKELOOP_ADMIN_LIMIT", Kind::Time, TIME),
    variable("WAKELOOP_RECORD", Kind::Path, "the path of a file"),
    variable("WAKELOOP_RECORD_SIGNAL", Kind::Signal, "a signal such as USR2, SIGUSR2 or 12"),
];

/// All variables.
pub(crate) fn all() -> impl Iterator<Item = &'static Variable> {
    PYTHON.iter().chain([&WORKERS, &SPIN, &SEED])
}

/// May one of the variables be set? This is one walk over the environment; [`Variable::read`] needs one for each name.
#[cfg(feature = "python")]
pub(crate) fn may_be_set() -> bool {
    cfg_select! {
        // SAFETY: the array of C strings that `getenv` walks, which `Variable::read` calls, under the same condition:
        // nobody changes the environment at the same time.
        target_os = "linux" => unsafe {
            let mut next = libc::environ;
            while !next.is_null() && !(*next).is_null() {
                // Most lines begin with another letter.
                if **next == b'W' as std::ffi::c_char && is_one(CStr::from_ptr(*next)) {
                    return true;
                }
                next = next.add(1);
            }
            false
        },
        _ => true,
    }
}

/// Is this line of the environment, `NAME=value`, about one of the variables?
#[cfg(all(feature = "python", target_os = "linux"))]
fn is_one(line: &CStr) -> bool {
    let name = line.to_bytes().split(|byte| *byte == b'=').next();
    all().any(|variable| name == Some(variable.name.as_bytes()))
}

/// Reads all variables. Fails for the first that means nothing.
pub(crate) fn check() -> Result<(), WrongSetting> {
    all().try_for_each(|variable| variable.read().map(drop))
}

/// The variables are not read.
static IGNORED: AtomicBool = AtomicBool::new(false);

/// From now on no variable counts in this process.
pub(crate) fn ignore() {
    // Relaxed: the flag stands for itself, and is set before any thread of ours runs.
    IGNORED.store(true, Relaxed);
}

impl Variable {
    /// Reads the variable. `None` if it is not set.
    pub(crate) fn read(&self) -> Result<Option<Value>, WrongSetting> {
        if IGNORED.load(Relaxed) {
            return Ok(None);
        }
        std::env::var_os(self.name).map_or(Ok(None), |text| self.parse(&text))
    }

    /// Reads a variable whose value is a number.
    pub(crate) fn number(&self) -> Result<Option<u64>, WrongSetting> {
        Ok(self.read()?.and_then(|value| if let Value::Number(number) = value { Some(number) } else { None }))
    }

    fn parse(&self, text: &OsStr) -> Result<Option<Value>, WrongSetting> {
        if text.as_encoded_bytes().trim_ascii().is_empty() {
            return Ok(None);
        }
        if matches!(self.kind, Kind::Path) {
            return Ok(Some(Value::Path(text.to_owned())));
        }
        if matches!(self.kind, Kind::Address) && is_address(text) {
            return Ok(Some(Value::Path(text.to_owned())));
        }
        let value = text.to_str().and_then(|text| self.kind.parse(&word(text)));
        value.map(Some).ok_or_else(|| self.wrong(text))
    }

    fn wrong(&self, text: &OsStr) -> WrongSetting {
        WrongSetting { name: self.name, value: quoted(text), allowed: self.allowed }
    }
}

/// Is it `unix:PATH` or `HOST:PORT`?
fn is_address(text: &OsStr) -> bool {
    if let Some(path) = text.as_encoded_bytes().strip_prefix(b"unix:") {
        return !path.is_empty();
    }
    let is_port = |port: &str| number(port).is_some_and(|port| port <= u16::MAX.into());
    let parts = text.to_str().and_then(|text| text.rsplit_once(':'));
    parts.is_some_and(|(host, port)| !host.is_empty() && is_port(port))
}

/// White space and case do not count.
fn word(text: &str) -> String {
    text.trim_ascii().to_ascii_lowercase()
}

/// The seconds of a time, written as in a variable.
pub(crate) fn time(text: &str) -> Option<f64> {
    seconds(&word(text))
}

impl Kind {
    fn parse(&self, word: &str) -> Option<Value> {
        match self {
            Kind::Switch | Kind::Address => match word {
                "0" => Some(Value::Switch(false)),
                "1" => Some(Value::Switch(true)),
                _ => None,
            },
            Kind::Word(words) => among(words, word),
            Kind::Time => seconds(word).map(Value::Time),
            Kind::Number(least, most, words) => among(words, word).or_else(|| {
                let number = number(word).filter(|number| (*least..=*most).contains(number))?;
                Some(Value::Number(number))
            }),
            Kind::Signal => signal(word).map(Value::Number),
            Kind::Path => None,
        }
    }
}

fn among(words: &[&'static str], word: &str) -> Option<Value> {
    words.iter().find(|each| **each == word).map(|each| Value::Word(each))
}

/// A number in decimal digits alone.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// The seconds of a time such as `250ms`, `0.25` or `0.25s`: from a nanosecond to thirty years. Infinity for `off` and
/// `0`.
fn seconds(text: &str) -> Option<f64> {
    if matches!(text, "off" | "0") {
        return Some(f64::INFINITY);
    }
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let unit = units.into_iter().find_map(|(unit, length)| Some((text.strip_suffix(unit)?, length)));
    let (number, length) = unit.unwrap_or((text, 1.0));
    let number = number.trim_ascii_end();
    // Rust also knows "inf", "nan" and "+1".
    if !number.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let seconds = number.parse::<f64>().ok()? * length;
    (1e-9..=1e9).contains(&seconds).then_some(seconds)
}

/// The number of a signal that a process can handle.
fn signal(text: &str) -> Option<u64> {
    let name = text.strip_prefix("sig").unwrap_or(text);
    let number = signal_named(name).or_else(|| number(text).and_then(|number| i32::try_from(number).ok()))?;
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is a local variable, which the first call initializes. The second one refuses numbers that are
    // no signals.
    let exists = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), number) == 0
    };
    let refused = matches!(number, libc::SIGKILL | libc::SIGSTOP);
    (exists && !refused).then(|| number.unsigned_abs().into())
}

/// The signal of this name, which has no `sig`.
fn signal_named(name: &str) -> Option<i32> {
    Some(match name {
        "abrt" => libc::SIGABRT,
        "alrm" => libc::SIGALRM,
        "bus" => libc::SIGBUS,
        "chld" => libc::SIGCHLD,
        "cont" => libc::SIGCONT,
        "fpe" => libc::SIGFPE,
        "hup" => libc::SIGHUP,
        "ill" => libc::SIGILL,
        "int" => libc::SIGINT,
        "io" => libc::SIGIO,
        "pipe" => libc::SIGPIPE,
        "prof" => libc::SIGPROF,
        "quit" => libc::SIGQUIT,
        "segv" => libc::SIGSEGV,
        "sys" => libc::SIGSYS,
        "term" => libc::SIGTERM,
        "trap" => libc::SIGTRAP,
        "tstp" => libc::SIGTSTP,
        "ttin" => libc::SIGTTIN,
        "ttou" => libc::SIGTTOU,
        "urg" => libc::SIGURG,
        "usr1" => libc::SIGUSR1,
        "usr2" => libc::SIGUSR2,
        "vtalrm" => libc::SIGVTALRM,
        "winch" => libc::SIGWINCH,
        "xcpu" => libc::SIGXCPU,
        "xfsz" => libc::SIGXFSZ,
        #[cfg(target_os = "linux")]
        "pwr" => libc::SIGPWR,
        #[cfg(target_os = "linux")]
        "stkflt" => libc::SIGSTKFLT,
        #[cfg(target_os = "linux")]
        "rtmin" => libc::SIGRTMIN(),
        #[cfg(target_os = "linux")]
        "rtmax" => libc::SIGRTMAX(),
        #[cfg(target_os = "macos")]
        "emt" => libc::SIGEMT,
        #[cfg(target_os = "macos")]
        "info" => libc::SIGINFO,
        _ => return None,
    })
}

/// The value in quotes, as Python shows strings. A long one is cut.
fn quoted(text: &OsStr) -> String {
    const MOST: usize = 100;
    let mut quoted = String::from("'");
    for chunk in text.as_encoded_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match (char, u32::from(char)) {
                ('\'' | '\\' | '\n' | '\r' | '\t', _) => quoted.extend(char.escape_default()),
                ('"', _) => quoted.push(char),
                _ if char.escape_debug().len() == 1 => quoted.push(char),
                (_, code @ ..0x100) => quoted += &format!("\\x{code:02x}"),
                (_, code @ ..0x1_0000) => quoted += &format!("\\u{code:04x}"),
                (_, code) => quoted += &format!("\\U{code:08x}"),
            }
            if quoted.len() > MOST {
                return quoted + "…'";
            }
        }
        chunk.invalid().iter().for_each(|byte| quoted += &format!("\\x{byte:02x}"));
        if quoted.len() > MOST {
            return quoted + "…'";
        }
    }
    quoted + "'"
}

/// A variable has a value that means nothing.
#[derive(Debug)]
pub(crate) struct WrongSetting {
    name: &'static str,
    value: String,
    allowed: &'static str,
}

impl fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; it can be {}", self.name, self.value, self.allowed)
    }
}

impl std::error::Error for WrongSetting {}

impl From<WrongSetting> for io::Error {
    fn from(error: WrongSetting) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn of(name: &str) -> &'static Variable {
        all().find(|variable| variable.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    fn parse(variable: &Variable, text: &str) -> Option<Value> {
        variable.parse(OsStr::new(text)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(variable: &Variable, text: &[u8]) -> String {
        match variable.parse(OsStr::from_bytes(text)) {
            Ok(value) => panic!("{text:?} is {value:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        for variable in all() {
            for empty in ["", " ", " \t\n"] {
                assert_eq!(parse(variable, empty), None, "{}", variable.name);
            }
        }
    }

    #[test]
    fn white_space_and_case_do_not_count() {
        assert_eq!(parse(of("WAKELOOP_TLS"), " Native "), Some(Value::Word("native")));
        assert_eq!(parse(&SPIN, "\tOFF\n"), Some(Value::Word("off")));
        assert_eq!(parse(&WORKERS, " 8"), Some(Value::Number(8)));
        assert_eq!(parse(of("WAKELOOP_ADMIN"), "1 "), Some(Value::Switch(true)));
        assert_eq!(parse(of("WAKELOOP_RECORD"), " a "), Some(Value::Path(" a ".into())));
    }

    #[test]
    fn a_time_has_a_unit_or_is_in_seconds() {
        for (text, seconds) in [
            ("250ms", 0.25),
            ("0.25", 0.25),
            (".25S", 0.25),
            ("5e-2", 0.05),
            ("50 MS", 0.05),
            ("250us", 2.5e-4),
            ("1e9", 1e9),
            ("off", f64::INFINITY),
            ("0", f64::INFINITY),
        ] {
            let Some(Value::Time(found)) = parse(of("WAKELOOP_SLOW_TURN"), text) else { panic!("{text}") };
            assert!((found - seconds).abs() < 1e-12 || found == seconds, "{text}: {found}");
        }
        for wrong in [
            "soon", "-1", "100m", "ms", "inf", "nan", "+1", "1e400", "1e10", "1e-10", "0ms", "-0.0", "1 0",
            "0x1", ".",
        ] {
            refusal(of("WAKELOOP_WATCHDOG"), wrong.as_bytes());
        }
    }

    #[test]
    fn a_number_has_digits_alone() {
        assert_eq!(parse(&SPIN, "1000"), Some(Value::Number(1000)));
        assert_eq!(parse(&SEED, "18446744073709551615"), Some(Value::Number(u64::MAX)));
        for wrong in ["on", "-1", "+1", "1001", "20us", "1.5", "18446744073709551617", "٣"] {
            refusal(&SPIN, wrong.as_bytes());
        }
    }

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        for text in ["USR2", "SIGUSR2", "sigusr2", &libc::SIGUSR2.to_string()] {
            assert_eq!(
                parse(of("WAKELOOP_RECORD_SIGNAL"), text),
                Some(Value::Number(libc::SIGUSR2 as u64)),
                "{text}"
            );
        }
        for wrong in ["NOSUCH", "KILL", "SIGSTOP", "9", "0", "-1", "9999", "99999999999", "sig", "sigsigusr2"]
        {
            refusal(of("WAKELOOP_RECORD_SIGNAL"), wrong.as_bytes());
        }
    }

    #[test]
    fn a_refusal_has_the_variable_the_value_and_what_is_allowed() {
        assert_eq!(
            refusal(of("WAKELOOP_TLS"), b"foo"),
            "WAKELOOP_TLS is 'foo'; it can be native, sslobject, asyncio or auto"
        );
        assert_eq!(refusal(&WORKERS, b"0"), "WAKELOOP_WORKERS is '0'; it can be a number from 1 to 1024");
        assert_eq!(
            refusal(&SPIN, b"\x1b\xff'\"\xe2\x80\x8b"),
            r#"WAKELOOP_SPIN is '\x1b\xff\'"\u200b'; it can be off, auto or microseconds up to 1000"#
        );
        assert!(refusal(of("WAKELOOP_GIL"), &[b'x'; 100_000]).len() < 200);
    }
}
