//! Lets the code ask which Python it is built for (`cfg(Py_3_12)` and so on), and name its own build.

fn main() {
    #[cfg(feature = "python")]
    {
        pyo3_build_config::use_pyo3_cfgs();
        let variable = |name| std::env::var(name).unwrap_or_default();
        let compiler = std::process::Command::new(variable("RUSTC")).arg("--version").output();
        let compiler = compiler.map(|output| output.stdout).unwrap_or_default();
        let compiler = String::from_utf8_lossy(&compiler);
        // "rustc 1.95.0 (59807616e 2026-04-14)"
        let compiler = compiler.split(" (").next().unwrap_or_default();
        let (profile, target) = (variable("PROFILE"), variable("TARGET"));
        println!("cargo::rustc-env=WAKELOOP_BUILD={profile} for {target} by {compiler}");
        // Python writes a pre-release in another way than Cargo (PEP 440): 0.2.0a1 for 0.2.0-alpha.1.
        let version = variable("CARGO_PKG_VERSION");
        let version = version.replace("-alpha.", "a").replace("-beta.", "b").replace("-rc.", "rc");
        println!("cargo::rustc-env=WAKELOOP_VERSION={version}");
    }
}
