//! The processes of a server: those of its process group, and all their descendants. PostgreSQL,
//! for example, gives each of its processes its own group.

use std::collections::HashSet;
use std::fs;

/// A process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: u32,
    parent: u32,
    pub(crate) group: u32,
    /// Processor time of the process, in clock ticks.
    pub(crate) ticks: u64,
    /// The part of `ticks` that was spent in the kernel.
    pub(crate) system_ticks: u64,
    /// Processor time, in clock ticks, of children that have ended and that the process has waited
    /// for.
    pub(crate) children_ticks: u64,
    /// True if the process has ended but its parent has not waited for it yet.
    pub(crate) ended: bool,
    /// When the process started, in clock ticks since boot. It distinguishes the process from later
    /// ones with the same id.
    pub(crate) started: u64,
}

impl Member {
    /// Returns true if the process has not ended.
    pub(crate) fn is_running(&self) -> bool {
        member(self.pid).is_some_and(|now| now.started == self.started && !now.ended)
    }
}

/// Returns the processes of a group and all their descendants, without the leader of the group.
pub(crate) fn members(leader: u32) -> Vec<Member> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    select(leader, pids.filter_map(member).collect())
}

fn select(leader: u32, mut all: Vec<Member>) -> Vec<Member> {
    let mut chosen = Vec::new();
    let mut pids = HashSet::new();
    loop {
        let before = chosen.len();
        all.retain(|member| {
            let belongs = member.group == leader || pids.contains(&member.parent);
            if belongs && member.pid != leader {
                pids.insert(member.pid);
                chosen.push(*member);
            }
            !belongs
        });
        // The loop ends once an iteration finds no further descendants.
        if chosen.len() == before {
            return chosen;
        }
    }
}

/// Reads a process from `/proc`. Returns `None` if there is none with this id.
pub(crate) fn member(pid: u32) -> Option<Member> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: u32, text: &str) -> Option<Member> {
    // The second field is the name in parentheses. It may contain spaces and parentheses, so the
    // fields are counted from the last closing parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let state = *fields.first()?;
    Some(Member {
        pid,
        parent: number(1)?.try_into().ok()?,
        group: number(2)?.try_into().ok()?,
        ticks: number(11)? + number(12)?,
        system_ticks: number(12)?,
        children_ticks: number(13)? + number(14)?,
        ended: matches!(state, "Z" | "X"),
        started: number(19)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_parsed_behind_any_name() {
        let text = "7 (a ) b) S 3 5 5 0 -1 0 1 2 3 4 10 20 30 40 20 0 1 0 99 1 2";
        let expected = Member {
            pid: 7,
            parent: 3,
            group: 5,
            ticks: 30,
            system_ticks: 20,
            children_ticks: 70,
            ended: false,
            started: 99,
        };
        assert_eq!(parse(7, text), Some(expected));
        assert!(parse(7, &text.replace(" S ", " Z ")).unwrap().ended);
        for text in ["", "7 (a", "7 (a) S", "7 (a) S x y z"] {
            assert_eq!(parse(7, text), None);
        }
    }

    #[test]
    fn the_group_and_its_descendants_are_members() {
        let member = |pid, parent, group| Member {
            pid,
            parent,
            group,
            ticks: 0,
            system_ticks: 0,
            children_ticks: 0,
            ended: false,
            started: 0,
        };
        let all = vec![
            member(40, 30, 40), // a grandchild in its own group
            member(10, 1, 10),  // the leader
            member(20, 1, 10),
            member(30, 20, 30), // a child in its own group
            member(50, 1, 50),
            member(11, 10, 11), // a child of the leader alone
        ];
        let mut pids: Vec<u32> = select(10, all).iter().map(|member| member.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [20, 30, 40]);
    }
}
