//! `tollgate demo`: comes up without any set-up, and what it prints can be pasted.

use super::process::{Folder, Process, free_port, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs one printed line in a shell; the status is asked for in addition.
fn paste(line: &str) -> (u16, String) {
    let output = Command::new("sh").args(["-c", &format!("{line} -w '\\n%{{http_code}}'")]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn the_demo_comes_up_its_lines_answer_and_ctrl_c_ends_it_with_code_0() {
    let folder = Folder::new();
    let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = ["demo", "--listen", &listen, "--admin-listen", &admin, "--pace", "500"];
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let mut demo = Process::start(folder.path(), "demo", &args, &[("TMPDIR", temporary.to_str().unwrap())]);
    let printed = wait_for("the demo's text", || {
        assert!(!demo.has_ended(), "{}", demo.written());
        Some(demo.written()).filter(|text| text.contains("ANTHROPIC_BASE_URL") && text.ends_with('\n'))
    });
    let lines: Vec<&str> = printed.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert!(lines.len() >= 2, "{printed}");
    let find =
        |path: &str| *lines.iter().find(|line| line.contains(path)).unwrap_or_else(|| panic!("{path}: {printed}"));
    let (status, body) = paste(find("/v1/chat/completions"));
    assert!(status == 200 && body.contains("choices"), "{status}: {body}");
    let (status, body) = paste(find("/v1/messages"));
    assert!(status == 200 && body.contains("content"), "{status}: {body}");
    for line in &lines {
        assert_eq!(paste(line).0, 200, "{line}");
    }

    let setting = |name: &str| {
        let at = printed.find(&format!("{name}=")).unwrap_or_else(|| panic!("{name}: {printed}")) + name.len() + 1;
        printed[at..].split_whitespace().next().unwrap().to_owned()
    };
    let (base, key) = (setting("OPENAI_BASE_URL"), setting("OPENAI_API_KEY"));
    assert_eq!(
        (setting("ANTHROPIC_API_KEY"), format!("{}/v1", setting("ANTHROPIC_BASE_URL"))),
        (key.clone(), base.clone())
    );
    let (status, models) = paste(&format!("curl -s {base}/models -H 'authorization: Bearer {key}'"));
    let models: Value = serde_json::from_str(&models).unwrap();
    let sizes: Vec<u64> =
        models["data"].as_array().unwrap().iter().filter_map(|m| m["context_window"].as_u64()).collect();
    assert_eq!((status, sizes.len()), (200, 6), "specification section 2.1: the catalog has six entries");
    assert!(sizes.iter().all(|size| matches!(size, 1_000_000 | 256_000)), "1M and 256K: {sizes:?}");
    assert!(sizes.contains(&1_000_000) && sizes.contains(&256_000), "{sizes:?}");

    let own = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let [kept] = &own(&temporary)[..] else { panic!("one folder: {:?}", own(&temporary)) };
    assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(demo.stop("INT").code(), Some(0));
    assert!(own(&temporary).is_empty(), "it leaves nothing behind");
}

/// Who runs it twice, or has something else on the port, gets one that works all the same.
#[test]
fn two_demos_run_side_by_side() {
    let folder = Folder::new();
    let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = ["demo", "--listen", &listen, "--admin-listen", &admin];
    let mut demos: Vec<Process> = ["one", "two"]
        .into_iter()
        .map(|name| {
            let demo = Process::start(folder.path(), name, &args, &[]);
            wait_for("the demo's text", || demo.written().contains("ANTHROPIC_BASE_URL").then_some(()));
            demo
        })
        .collect();
    for demo in &mut demos {
        let text = demo.written();
        let mut lines = text.lines().map(str::trim).filter(|line| line.starts_with("curl "));
        let line = lines.find(|line| line.contains("/v1/messages")).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(paste(line).0, 200);
        assert_eq!(demo.stop("INT").code(), Some(0));
    }
}
