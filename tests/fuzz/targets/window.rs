//! The head of a request to the window: whatever comes, and in whatever pieces, it is a request as a search for lines
//! finds it, or has a status.

use std::net::IpAddr;

use super::answer::Answer;
use super::head::{Head, LONGEST, Request, parse};
use crate::fuzzing::Input;

/// Pieces of heads.
const TOKENS: [&str; 20] = [
    "GET ",
    "HEAD ",
    "POST ",
    "/",
    "/livez",
    "?seconds=1",
    "*",
    " HTTP/1.1",
    " HTTP/1.0",
    " HTTP/2.0",
    "\r\n",
    "\n",
    "Host: ",
    "shop",
    "localhost:80",
    "[::1]:9",
    "evil.example",
    "Connection: close",
    "Content-Length: 1",
    "a: b",
];

/// The lines of a head up to the empty one, and the host in it.
fn check(head: &[u8], request: &Request, name: Option<&str>) {
    let head = str::from_utf8(head).expect("a head is text");
    // A parser may leave out empty lines at the beginning.
    let mut lines =
        head.split('\n').map(|line| line.trim_end_matches('\r')).skip_while(|line| line.is_empty());
    let target = match request.query.as_str() {
        "" => request.path.clone(),
        query => format!("{}?{query}", request.path),
    };
    let line = lines.next().expect("a line");
    let parts: Vec<&str> = line.split(' ').filter(|part| !part.is_empty()).collect();
    let [method, path, version] = parts[..] else { panic!("{line:?}") };
    assert_eq!(method, if request.wants_body { "GET" } else { "HEAD" });
    assert!(path == target || path.strip_suffix('?') == Some(&target), "{path:?} {target:?}");
    assert!(!target.contains(|char: char| char.is_ascii_control() || char == ' '));
    let fields = lines.filter_map(|line| line.split_once(':'));
    let hosts: Vec<&str> =
        fields.filter(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| value.trim()).collect();
    assert!(hosts.len() == 1 || version == "HTTP/1.0" && hosts.is_empty(), "{hosts:?}");
    if let Some(name) = name {
        let host = hosts.first().copied().unwrap_or_default().to_ascii_lowercase();
        let bare = host.rsplit_once(':').map_or(host.as_str(), |(bare, _)| bare);
        let addresses =
            [host.as_str(), bare].map(|text| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok());
        assert!(addresses.contains(&true) || ["localhost", name].contains(&bare), "{host:?}");
    }
}

pub(crate) fn run(mut input: Input<'_>) {
    let name = input.flag().then_some("shop");
    let mut data = Vec::new();
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => data.extend(input.piece()),
            _ => data.extend(input.one_of(&TOKENS).as_bytes()),
        }
    }
    let ends = data.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    for end in ends.chain([data.len()]).take(200) {
        match parse(&data[..end], name) {
            Head::Incomplete => assert!(end < LONGEST),
            Head::Refused(status) => {
                let answer = Answer::refusal(status).into_bytes(true, false);
                assert!(
                    answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()) && answer.ends_with(b"\n")
                );
                return;
            }
            Head::Complete(request, length) => {
                assert_eq!(length, end, "a head ends with its last line");
                check(&data[..length], &request, name);
                assert_eq!(
                    parse(&data, name),
                    Head::Complete(request, length),
                    "what follows changes nothing"
                );
                return;
            }
        }
    }
}
