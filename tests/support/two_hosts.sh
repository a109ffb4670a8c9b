#!/bin/bash
# Two hosts on one machine: network namespaces with a cable between them, host names of their own, and each host's own
# name at 127.0.1.1, as Debian has it. Starts two ranks on each, with torchrun's variables, and pulls the cable once rank
# 0 says "all have met". To be run in namespaces of its own: unshare --net --uts --mount two_hosts.sh FOLDER PORT RANK...
# What rank N prints is in FOLDER/rank_N.log afterwards, its exit code in FOLDER/rank_N.code.
set -eu
folder=$1 port=$2
shift 2

unshare --net --uts --mount sleep 600 &
other=$!
trap 'kill $other' EXIT
while [ "$(readlink /proc/$other/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.02; done
on() {  # HOST COMMAND...
  local host=$1
  shift
  if [ "$host" = nodea ]; then "$@"; else nsenter --target $other --net --uts --mount "$@"; fi
}

ip link add cable-a type veth peer name cable-b netns $other
set_up() {  # HOST CABLE ADDRESS OTHER_HOST OTHER_ADDRESS
  on $1 hostname $1
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n%s %s\n' $1 $5 $4 > "$folder/hosts_$1"
  on $1 mount --bind "$folder/hosts_$1" /etc/hosts
  on $1 ip link set lo up
  on $1 ip address add $3/24 dev $2
  on $1 ip link set $2 up
}
set_up nodea cable-a 10.77.0.1 nodeb 10.77.0.2
set_up nodeb cable-b 10.77.0.2 nodea 10.77.0.1

start() {  # HOST RANK LOCAL_RANK COMMAND...
  local host=$1 rank=$2 local_rank=$3 code=0
  shift 3
  RANK=$rank LOCAL_RANK=$local_rank WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=nodea MASTER_PORT=$port \
    on $host "$@" > "$folder/rank_$rank.log" 2>&1 || code=$?
  echo $code > "$folder/rank_$rank.code"
}
start nodea 0 0 "$@" & ranks=$!
start nodea 1 1 "$@" & ranks="$ranks $!"
start nodeb 2 0 "$@" & ranks="$ranks $!"
start nodeb 3 1 "$@" & ranks="$ranks $!"

while [ ! -e "$folder/rank_0.code" ] && ! grep -q 'all have met' "$folder/rank_0.log" 2> /dev/null; do sleep 0.05; done
ip link set cable-a down
wait $ranks
