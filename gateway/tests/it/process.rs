//! The program: exit codes and what it says.

use std::process::Command;

use crate::world::{World, config};

fn check(file: &std::path::Path) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_towline-gateway"))
        .args(["check-config", "--config"])
        .arg(file)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn check_config_reports_all_faults_and_exits_with_2() {
    let world = World::new().await;
    let file = world.dir.path().join("gateway.toml");
    let (code, text) = check(&file);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("no faults"), "{text}");
    let bad = config("[limits]\nnonsense = 1").replace("tls.key", "missing.key").replace("cluster = ", "clutser = ");
    std::fs::write(&file, bad).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    for part in ["gateway.toml", "limits.nonsense", "grants[0].cluster", "grants[0].clutser", "known here"] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    std::fs::write(&file, config("").replace("tls.key", "missing.key")).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("tls.key_file") && text.contains("missing.key"), "{text}");
    std::fs::write(&file, config("").replace("url = \"https://issuer.test\"", "url = \"http://issuer.test\"")).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("issuers"), "{text}");
}
