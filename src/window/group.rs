//! The other processes that were given the same TCP address, and the answers of all.
//!
//! Each of them has a link to its own socket in a folder of the address. The one that is asked asks the others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answer::{Answer, Content};
use super::json;
use super::socket_path::SocketPath;
use crate::runtime::net::UnixStream;
use crate::runtime::spawn;
use crate::runtime::time::timeout;

/// How long another process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer of another process.
const LONGEST: usize = 64 << 20;

/// The answer of a process.
pub(super) type Part = (u32, Answer);

/// The processes that have the address of this folder, but this one, with their sockets.
fn others(group: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(group) else { return Vec::new() };
    let own = std::process::id();
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> = paths.filter_map(|path| Some((number(&path)?, path))).collect();
    found.retain(|(pid, _)| *pid != own);
    found.sort_unstable();
    found
}

/// Asks the others.
pub(super) async fn ask(group: &Path, target: &str) -> Vec<Part> {
    let others = others(group).into_iter();
    let asked: Vec<_> = others
        .map(|(pid, path)| {
            let target = target.to_owned();
            (pid, spawn(async move { timeout(PATIENCE, fetch(&path, &target)).await }))
        })
        .collect();
    let mut parts = Vec::new();
    for (pid, task) in asked {
        match task.await {
            // It has ended, and left its link behind.
            Ok(Ok(Ok(None))) => {}
            Ok(Ok(Ok(Some(answer)))) => parts.push((pid, answer)),
            _ => parts.push((pid, Answer::line(503, "it does not answer"))),
        }
    }
    parts
}

/// The answer of a process; `None` if it has ended.
async fn fetch(path: &Path, target: &str) -> io::Result<Option<Answer>> {
    let short = SocketPath::new(path)?;
    let stream = match UnixStream::connect(&short).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            let _ = fs::remove_file(path);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let (mut data, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            count if data.len() + count <= LONGEST => data.extend_from_slice(&buffer[..count]),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    let text = String::from_utf8(data).map_err(|_| io::ErrorKind::InvalidData)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Some(Answer::new(status.ok_or(io::ErrorKind::InvalidData)?, Content::Text, body.to_owned())))
}

/// The answers of several processes as one.
pub(super) fn merge(path: &str, parts: &[Part]) -> Answer {
    let content = match path {
        "/metrics" => Content::Metrics,
        "/loops" | "/slow" | "/tasks" => Content::Json,
        _ => Content::Text,
    };
    let is_probe = matches!(path, "/livez" | "/readyz");
    let fails = parts.iter().any(|(_, answer)| answer.status != 200);
    // The samples of those that answer are worth having. Prometheus would throw them away with another status.
    let status = if fails && content != Content::Metrics { 503 } else { 200 };
    let body = match content {
        Content::Text => {
            let text = |(pid, answer): &Part| format!("process {pid}: {}", answer.body);
            let shown = parts.iter().filter(|(_, answer)| !is_probe || !fails || answer.status != 200);
            shown.map(text).collect()
        }
        Content::Metrics => merge_metrics(parts.iter().filter(|(_, answer)| answer.status == 200)),
        Content::Json => {
            let text = |(pid, answer): &Part| match answer.status {
                200 => answer.body.clone(),
                _ => json::text(|object| {
                    object.plain("pid", pid);
                    object.text("error", answer.body.trim_end());
                }),
            };
            format!("[{}]\n", parts.iter().map(text).collect::<Vec<_>>().join(","))
        }
    };
    Answer::new(status, content, body)
}

/// Puts the samples of each family together, as Prometheus' format demands.
fn merge_metrics<'a>(parts: impl Iterator<Item = &'a Part>) -> String {
    let mut families: Vec<(&str, String)> = Vec::new();
    for (_, answer) in parts {
        // The names of loops may have these words, but no line begins with one.
        let Some(body) = answer.body.strip_prefix("# HELP ") else { continue };
        for family in body.trim_end().split("\n# HELP ") {
            let name = family.split(' ').next().unwrap_or_default();
            match families.iter_mut().find(|(known, _)| *known == name) {
                Some((_, text)) => family.split('\n').skip(2).for_each(|line| *text += &format!("{line}\n")),
                None => families.push((name, format!("# HELP {family}\n"))),
            }
        }
    }
    families.into_iter().map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bodies: &[(u16, &str)]) -> Vec<Part> {
        let answer = |(status, body): &(u16, &str)| Answer::new(*status, Content::Text, (*body).to_owned());
        (1..).zip(bodies.iter().map(answer)).collect()
    }

    #[test]
    fn a_probe_succeeds_if_all_processes_do_and_names_those_that_do_not() {
        let of = |bodies| merge("/livez", &parts(bodies));
        let all = of(&[(200, "alive\n"), (200, "alive\n")]);
        assert_eq!((all.status, all.body.as_str()), (200, "process 1: alive\nprocess 2: alive\n"));
        let one = of(&[(200, "alive\n"), (503, "blocked\n")]);
        assert_eq!((one.status, one.body.as_str()), (503, "process 2: blocked\n"));
    }

    #[test]
    fn the_samples_of_a_family_stand_together() {
        let one = "# HELP a A\n# TYPE a gauge\na{pid=\"1\"} 1\n# HELP b B\n# TYPE b gauge\nb{pid=\"1\"} 1\n";
        let other =
            "# HELP b B\n# TYPE b gauge\nb{pid=\"2\"} 2\n# HELP c C\n# TYPE c gauge\nc{pid=\"2\"} 2\n";
        let merged = merge("/metrics", &parts(&[(200, one), (200, other)])).body;
        let expected = "# HELP a A\n# TYPE a gauge\na{pid=\"1\"} 1\n# HELP b B\n# TYPE b gauge\nb{pid=\"1\"} 1\n\
                        b{pid=\"2\"} 2\n# HELP c C\n# TYPE c gauge\nc{pid=\"2\"} 2\n";
        assert_eq!(merged, expected);
        let named = "# HELP a A\n# TYPE a gauge\na{loop=\"# HELP b B\"} 1\n";
        assert_eq!(merge("/metrics", &parts(&[(200, named)])).body, named);
        let without = merge("/metrics", &parts(&[(200, one), (503, "it does not answer\n")]));
        assert_eq!((without.status, without.body.as_str()), (200, one));
    }

    #[test]
    fn objects_become_a_list_which_is_unavailable_if_one_of_them_is() {
        let list = merge("/slow", &parts(&[(200, "{}\n"), (503, "no\n")]));
        assert_eq!((list.status, list.body.as_str()), (503, "[{}\n,{\"pid\":2,\"error\":\"no\"}\n]\n"));
        let all = merge("/slow", &parts(&[(200, "{}\n"), (200, "{}\n")]));
        assert_eq!((all.status, all.body.as_str()), (200, "[{}\n,{}\n]\n"));
    }
}
