//! Who does something by hand, for the record.

/// Variables that hold the user's name, on one system or another.
const USER: [&str; 3] = ["USER", "LOGNAME", "USERNAME"];
const HOST: [&str; 2] = ["HOSTNAME", "COMPUTERNAME"];

/// User and machine, as far as they are known.
pub(crate) fn operator() -> String {
    let named = |names: &[&str]| {
        let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
        values.find(|value| !value.trim().is_empty())
    };
    let user = named(&USER).or_else(of_process);
    let host = named(&HOST).or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    name(user.as_deref(), host.as_deref())
}

fn name(user: Option<&str>, host: Option<&str>) -> String {
    let user = user.map_or("unknown user", str::trim);
    match host.map(str::trim).filter(|host| !host.is_empty()) {
        Some(host) => format!("{user}@{host}"),
        None => user.to_owned(),
    }
}

/// The user that this process runs as: services and containers often have no variable that says it.
#[cfg(unix)]
fn of_process() -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let id = std::fs::metadata("/proc/self").ok()?.uid();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(name_of(id, &users).unwrap_or_else(|| format!("uid {id}")))
}

#[cfg(not(unix))]
fn of_process() -> Option<String> {
    None
}

/// The name of a user's number among the lines of `/etc/passwd`: `name:password:number:…`.
#[cfg(unix)]
fn name_of(id: u32, users: &str) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_is_user_and_machine() {
        assert_eq!(name(Some("ann"), Some("db1\n")), "ann@db1");
        assert_eq!(name(Some("ann"), None), "ann");
        assert_eq!(name(None, Some("")), "unknown user");
    }

    #[cfg(unix)]
    #[test]
    fn user_without_a_variable_is_found_by_its_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\n::7\nbroken\napp:x:1000:1000::/:/bin/sh\n";
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        assert_eq!(name_of(1000, users).as_deref(), Some("app"));
        assert_eq!(name_of(7, users), None);
        assert!(of_process().is_none_or(|user| !user.is_empty()));
    }
}
