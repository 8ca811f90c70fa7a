//! A storage path as it is written on the command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tensortier::storage::path::MaxProcesses;
use tensortier::storage::units::{Bytes, BytesPerSecond};

/// What sort of storage a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PathKind {
    #[default]
    Nvme,
    Remote,
}

/// A path as given:
/// `DIR[,kind=nvme|remote][,read=RATE][,write=RATE][,quota=SIZE][,deadline=SECONDS][,processes=COUNT|any|auto]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PathArg {
    pub(crate) dir: PathBuf,
    pub(crate) kind: PathKind,
    pub(crate) read: Option<BytesPerSecond>,
    pub(crate) write: Option<BytesPerSecond>,
    pub(crate) quota: Option<Bytes>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) processes: MaxProcesses,
}

impl FromStr for PathArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let dir = parts.next().filter(|dir| !dir.is_empty());
        let dir = dir.ok_or("the directory is missing; write DIR or DIR,OPTION=VALUE")?;
        let mut path = PathArg { dir: dir.into(), ..PathArg::default() };
        let mut seen = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&key) {
                return Err(format!("{key} is given twice; give it once"));
            }
            seen.push(key);
            path.set(key, value)?;
        }
        Ok(path)
    }
}

impl PathArg {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let named = |error: &dyn std::fmt::Display| format!("{key}: {error}");
        match key {
            "kind" => {
                self.kind = match value {
                    "nvme" => PathKind::Nvme,
                    "remote" => PathKind::Remote,
                    _ => return Err(format!("kind: {value:?} is neither nvme nor remote")),
                }
            }
            "read" => self.read = Some(value.parse().map_err(|error| named(&error))?),
            "write" => self.write = Some(value.parse().map_err(|error| named(&error))?),
            "quota" => self.quota = Some(value.parse().map_err(|error| named(&error))?),
            "deadline" => self.deadline = Some(seconds(value).map_err(|error| named(&error))?),
            "processes" => self.processes = value.parse().map_err(|error| named(&error))?,
            _ => {
                return Err(format!(
                    "{key:?} is no option of a path; use kind=, read=, write=, quota=, deadline= or \
                     processes= (a directory's name must not contain a comma)"
                ));
            }
        }
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.trim_end_matches('s').parse().ok();
    let duration = seconds.filter(|s| *s > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    duration.ok_or_else(|| format!("{text:?} is no time; write seconds, for example 30"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_takes_options_after_commas() {
        assert_eq!("/a".parse(), Ok(PathArg { dir: "/a".into(), ..PathArg::default() }));
        let remote = PathArg {
            dir: "b c".into(),
            kind: PathKind::Remote,
            read: Some(BytesPerSecond(1.5e9)),
            write: Some(BytesPerSecond(6e8)),
            quota: Some(Bytes(8 << 30)),
            deadline: Some(Duration::from_millis(2500)),
            processes: MaxProcesses::AtMost(std::num::NonZeroU32::MIN),
        };
        let text = "b c,kind=remote,read=1.5GB/s,write=600MB/s,quota=8GiB,deadline=2.5,processes=1";
        assert_eq!(text.parse(), Ok(remote));
        assert_eq!("/a,kind=nvme".parse::<PathArg>().unwrap().kind, PathKind::Nvme);
    }

    #[test]
    fn what_is_wrong_is_named_with_a_remedy() {
        let refused = |text: &str, parts: &[&str]| {
            let error = text.parse::<PathArg>().unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused("/a,read=1.5GBs", &["read:", "1.5GBs", "600MB/s"]);
        refused("/a,write=9", &["write:", "600MB/s"]);
        refused("/a,quota=8Qi", &["quota:", "8Qi", "512MiB"]);
        refused("/a,deadline=soon", &["deadline:", "soon", "write seconds"]);
        refused("/a,deadline=-1", &["deadline:", "write seconds"]);
        refused("/a,processes=0", &["processes:", "a number from 1, any, or auto"]);
        refused("/a,kind=disk", &["kind:", "disk", "neither nvme nor remote"]);
        refused("/a,speed=1", &["\"speed\" is no option of a path", "must not contain a comma"]);
        refused("/a,read", &["read:", "is not a rate"]);
        refused("/a,", &["is no option of a path"]);
        refused("/a,read=1GB/s,read=2GB/s", &["read is given twice"]);
        refused(",kind=nvme", &["the directory is missing"]);
        refused("", &["the directory is missing"]);
    }
}
