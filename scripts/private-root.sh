# Functions for a test that needs its own root: this machine's /usr below an overlay, an /etc with
# what logins need, and an empty /var, /run, /tmp and home. A script that runs as root in new mount
# and pid namespaces sources this file. Nothing changes outside of these namespaces.

# make_root ROOT: mounts it, and goes there. What the caller adds is put there before enter_root.
make_root() {
  local root=$1 name
  mount --make-rprivate /
  mount -t tmpfs -o mode=755 tmpfs "$root"
  cd "$root"
  mkdir -p usr etc/systemd/system run var/lib var/log var/cache tmp proc sys dev root home layer/usr layer/work old
  for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
  mount -t overlay -o lowerdir=/usr,upperdir=layer/usr,workdir=layer/work overlay usr
  for name in passwd group shadow gshadow nsswitch.conf ld.so.conf ld.so.conf.d ld.so.cache alternatives pam.d security login.defs \
    manpath.config; do
    [ ! -e "/etc/$name" ] || cp -a "/etc/$name" etc/
  done
  : > etc/machine-id
  # What is installed, for dpkg and for what its scripts ask.
  cp -a /var/lib/dpkg var/lib/
  mkdir -p var/lib/systemd
  mount -t proc proc proc
  # The kernel's settings are not ours.
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755 tmpfs dev
  for name in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${name%:*}" c 1 "${name#*:}"; done
  mknod -m 666 dev/tty c 5 0
  mkdir dev/pts dev/shm
  mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  mount -t tmpfs tmpfs dev/shm
  mount -t tmpfs -o mode=755 tmpfs run
  mount -t tmpfs -o mode=1777 tmpfs tmp
}

# enter_root: makes the folder that make_root went to the root of the caller.
enter_root() {
  pivot_root . old
  umount -l /old
  cd /
}
