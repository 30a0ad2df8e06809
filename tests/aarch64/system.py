"""A whole machine in qemu: Debian's kernel for aarch64, a root of Debian packages, and heaptape's tree with the tests that were built for it.

Nothing is installed in the root, packages are only unpacked, so no program for aarch64 runs while the image is made. The root is made once and kept; a run writes
to a copy in memory.
"""

import glob
import os
import shutil
import subprocess

# What the tests of the pipeline use.
PACKAGES = (
    "busybox-static bash coreutils gcc g++ libc6-dev python3-minimal python3 procps kmod gdb strace util-linux mount libc-bin grep sed gawk findutils "
    "diffutils binutils make tar gzip login passwd base-passwd hostname iproute2 perl-base zstd xz-utils libcap2-bin psmisc systemd-sysv systemd dbus "
    "python3-venv python3-pip dpkg python3-yaml nodejs rustc golang-go netcat-openbsd bubblewrap debuginfod libsqlite3-dev "
    "libjemalloc2 libjemalloc-dev libtcmalloc-minimal4 libgoogle-perftools-dev libmimalloc2.0 libmimalloc-dev"
).split()
# The kernel of each size of page: suite and package.
KERNELS = {"4k": ("bookworm", "linux-image-cloud-arm64"), "16k": ("trixie", "linux-image-arm64-16k")}
MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")

INITRD = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc; /bin/busybox mount -t sysfs sys /sys; /bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules); do /bin/busybox insmod /mod/$module; done
n=0; while [ ! -b /dev/vdb ] && [ $n -lt 50 ]; do /bin/busybox sleep 0.2; n=$((n + 1)); done
/bin/busybox mount -t ext4 /dev/vda /newroot
exec /bin/busybox switch_root /newroot /start
"""

START = """#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/shm /dev/pts; ln -s /proc/self/fd /dev/fd
mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs tmp /tmp; mount -t tmpfs run /run; chmod 1777 /tmp /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ldconfig; busybox hostname machine; busybox ip link set lo up
mkdir -p /payload; mount /dev/vdb /payload
echo "MACHINE $(uname -rm), pages of $(getconf PAGESIZE) B, $(nproc) processors"
. /payload/run
sync; busybox poweroff -f
"""

USERS = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"


def run(command, **options):
    return subprocess.run(command, check=True, **options)


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def unpacked(folder, suite, packages):
    """A folder with Debian packages for aarch64, and what they need."""
    if not os.path.exists(folder):
        shutil.rmtree(f"{folder}.new", ignore_errors=True)
        run(["mmdebstrap", "--quiet", "--arch=arm64", "--variant=extract", "--skip=check/qemu", f"--include={','.join(packages)}", suite, f"{folder}.new"])
        os.rename(f"{folder}.new", folder)
    return folder


def image(folder, path, megabytes):
    if os.path.exists(path):
        os.remove(path)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", folder, path, f"{megabytes}M"])
    return path


def root(folder):
    """The image of the root."""
    path = os.path.join(folder, "root.img")
    if not os.path.exists(path):
        tree = unpacked(os.path.join(folder, "root"), "bookworm", PACKAGES)
        # What the packages' scripts would have made.
        for link, target in {"bin/sh": "bash", "usr/bin/awk": "gawk", "usr/bin/cc": "gcc", "usr/bin/c++": "g++"}.items():
            if not os.path.lexists(os.path.join(tree, link)):
                os.symlink(target, os.path.join(tree, link))
        write(os.path.join(tree, "etc/passwd"), USERS)
        write(os.path.join(tree, "etc/group"), "root:x:0:\nnogroup:x:65534:\n")
        write(os.path.join(tree, "etc/hosts"), "127.0.0.1 localhost machine\n")
        write(os.path.join(tree, "start"), START, 0o755)
        image(tree, f"{path}.new", 6000)
        os.rename(f"{path}.new", path)
    return path


def kernel(folder, pages):
    """Kernel and first file system."""
    suite, package = KERNELS[pages]
    tree = unpacked(os.path.join(folder, f"kernel-{pages}"), suite, [package, "busybox-static"])
    if not os.path.exists(f"{tree}/lib"):
        os.symlink("usr/lib", f"{tree}/lib")
    version = max(os.listdir(f"{tree}/lib/modules"))
    initrd = os.path.join(folder, f"initrd-{pages}")
    if not os.path.exists(initrd):
        run(["depmod", "-b", tree, version])
        modules = f"{tree}/lib/modules/{version}"
        with open(os.path.join(modules, "modules.dep"), encoding="utf-8") as file:
            needs = {os.path.basename(line.split(":")[0]).split(".")[0]: [line.split(":")[0], *line.split(":")[1].split()] for line in file}
        start = f"{initrd}.tree"
        shutil.rmtree(start, ignore_errors=True)
        order = []
        for module in MODULES:
            # A module that is part of the kernel is not listed.
            for path in reversed(needs.get(module, [])):
                name = os.path.basename(path).split(".")[0] + ".ko"
                if name not in order:
                    order.append(name)
                    os.makedirs(f"{start}/mod", exist_ok=True)
                    with open(f"{start}/mod/{name}", "wb") as file:
                        file.write(run(["xz", "-dc", f"{modules}/{path}"], stdout=subprocess.PIPE).stdout if path.endswith(".xz") else open(f"{modules}/{path}", "rb").read())
        for name in ("bin", "dev", "proc", "sys", "newroot", "mod"):
            os.makedirs(f"{start}/{name}", exist_ok=True)
        shutil.copy(next(path for path in (f"{tree}/bin/busybox", f"{tree}/usr/bin/busybox") if os.path.exists(path)), f"{start}/bin/busybox")
        write(f"{start}/modules", " ".join(order))
        write(f"{start}/init", INITRD, 0o755)
        run(f"find . | cpio --quiet -o -H newc | gzip > {initrd}.new", shell=True, cwd=start)
        os.rename(f"{initrd}.new", initrd)
    return glob.glob(f"{tree}/boot/vmlinuz-*")[0], initrd


def boot(folder, pages, payload, seconds):
    """Starts the machine and gives its lines."""
    linux, initrd = kernel(folder, pages)
    machine = subprocess.Popen(
        ["timeout", str(seconds), "qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "3072", "-nographic", "-no-reboot", "-nic", "none",
         "-kernel", linux, "-initrd", initrd, "-append", "console=ttyAMA0 quiet panic=-1",
         "-drive", f"file={root(folder)},if=virtio,format=raw,snapshot=on", "-drive", f"file={payload},if=virtio,format=raw,snapshot=on"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in machine.stdout:
        yield line.rstrip()
    if machine.wait() == 124:
        yield "RESULT late 0 machine::off 'the machine did not end in time'"
