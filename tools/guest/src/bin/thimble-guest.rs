//! The first process of a virtual machine that runs one node. Not for use in a shell: see the
//! crate.

fn main() -> std::process::ExitCode {
    if std::process::id() != 1 {
        eprintln!(
            "thimble-guest is the first process of a virtual machine; thimble-lab image build \
             puts it into an image"
        );
        return std::process::ExitCode::from(2);
    }
    guest::init::run()
}
